"""Python programs in processes of their own, which do not wait for `import torch`: two seconds.

One process for each worker of pytest imports torch, starts no thread, and forks for each program.
A program has its own environment, output and exit status, and nothing of this library is imported
in it. What happens before torch is imported is not its own: OMP_NUM_THREADS and LD_PRELOAD have
been read, options of the interpreter are those of the tests, and `torch` is among the modules. A
test of any of these starts the interpreter by `subprocess`.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hanging

FORKING = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
FORKING.set_forkserver_preload(["torch"])


def run_program(program, env=None):
    """As `subprocess.run([sys.executable, "-c", program], ...)` with its output as text."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        environment = dict(os.environ if env is None else env)
        given = program, environment, Path.cwd(), outputs
        process = FORKING.Process(target=_become, args=given)
        process.start()
        process.join(hanging.SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(program, hanging.SECONDS)
        written = [output.read_text() if output.exists() else "" for output in outputs]
        return subprocess.CompletedProcess(program, process.exitcode, *written)


def adopt(environment):
    """In a forked process, whose variables are those of the first test that needed one."""
    os.environ.clear()
    os.environ.update(environment)


def _become(program, environment, folder, outputs):
    adopt(environment)
    os.chdir(folder)
    for stream, output in zip((sys.stdout, sys.stderr), outputs, strict=True):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream.fileno())
    sys.argv = ["-c"]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
