"""The native library for ARM, run by an emulator: as it is installed where that is on ARM.

Elsewhere tests compile it with little optimisation: the instructions that matter are written by
name, and on optimisation the last bits of some products depend, but no bound.
"""

import functools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
BUILT = HERE.parents[1] / "build" / "native" / "CMakeFiles" / "blockscale_cpu.dir"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
# The one installed beside Python first: what else is on the path may be a shim of nothing.
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
# CPUs that the emulator knows, and the best instruction set of each.
CPUS = {"cortex-a72": "neon", "neoverse-n1": "dotprod", "max": "bf16"}


def missing():
    """What would have to be installed, or ""."""
    absent = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
    absent += [] if CMAKE else ["cmake"]
    return f"needs {' and '.join(absent)}" if absent else ""


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def emulated(cpu, program, *arguments, options=()):
    return run(EMULATOR, "-cpu", cpu, *options, program, *arguments)


def is_run(command):
    """Whether the emulator runs what a command compiles: all but the extension of Python."""
    return "replay" not in Path(command["file"]).name


def built_objects():
    """Every file of the library as `make venv` has compiled it; none that is older than a source,
    or of another machine."""
    sources = [*CSRC.rglob("*.*")]
    changed = max(each.stat().st_mtime for each in sources)
    found = [*BUILT.rglob("*.o")] if platform.machine() == "aarch64" else []
    kept = {each.relative_to(BUILT).with_suffix("") for each in found}
    current = kept <= {each.relative_to(CSRC) for each in sources}  # none of a source that is gone
    return found if current and all(each.stat().st_mtime > changed for each in found) else []


def compile_objects(folder, optimization):
    """Every file of the library, as CMake would compile it but for the optimisation."""
    run(CMAKE, "-S", CSRC, "-B", folder, "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")  # fmt: skip
    commands = json.loads((folder / "compile_commands.json").read_text())
    ours = [each for each in commands if is_run(each)]

    def compile_one(numbered):
        number, command = numbered
        to = folder / f"{number}.o"
        words = shlex.split(command["command"])
        words[words.index("-o") + 1] = str(to)
        run(*(word for word in words if not word.startswith("-O")), optimization, "-g0")
        return to

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, enumerate(ours)))


def link(folder, objects, *sources):
    program = folder / Path(sources[0]).stem
    run(COMPILER, "-std=c++17", "-O1", "-static", "-I", CSRC, *(HERE / each for each in sources),
        *objects, "-o", program)  # fmt: skip
    return program


@functools.cache
def counter(folder):
    """The plugin of the emulator that counts instructions."""
    plugin = folder / "libinstructions.so"
    run("cc", "-shared", "-fPIC", "-O1", HERE / "instructions.c", "-o", plugin)
    return plugin


def count(folder, program, case, rows, n, isa, *algorithm):
    """Instructions of a product, without those of the program around it."""

    return (executed(folder, program, case, rows, n, isa, *algorithm)
            - executed(folder, program, case, 0, n, isa, *algorithm))  # fmt: skip


@functools.cache  # without rows it is asked for again and again
def executed(folder, program, *arguments):
    options = ("-plugin", counter(folder), "-d", "plugin")
    done = emulated("max", program, *arguments, options=options)
    return int(done.stderr.split()[-1])
