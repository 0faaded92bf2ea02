"""A program in a process of its own has what it would have if the interpreter were started."""

import signal
from pathlib import Path

from fresh_process import run_program


def test_it_is_new_but_for_torch():
    done = run_program(
        "import os, sys\n"
        "packages = {each.partition('.')[0] for each in sys.modules}\n"
        "print('torch' in packages, 'blockscale' in packages)\n"
        "print(len(os.listdir('/proc/self/task')) if os.path.exists('/proc/self/task') else 1)\n"
        "print(__name__, sys.argv)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["True False", "1", "__main__ ['-c']"]


def test_environment_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOCKSCALE_SAID", "here")
    program = "import os; print(os.environ.get('BLOCKSCALE_SAID'), os.getcwd())"
    assert run_program(program).stdout.split() == ["here", str(Path.cwd())]
    assert run_program(program, env={}).stdout.split() == ["None", str(Path.cwd())]


def test_how_it_ends():
    assert run_program("import sys; sys.exit(7)").returncode == 7
    failed = run_program("1 / 0")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    killed = run_program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL


def test_output_of_native_code_comes_too():
    done = run_program("import os; os.write(1, b'one\\n'); os.write(2, b'two\\n')")
    assert (done.stdout, done.stderr) == ("one\n", "two\n")
