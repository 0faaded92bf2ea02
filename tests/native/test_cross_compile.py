"""The native library compiles for the other architecture too, where its compiler is installed.

Files that test_arm.py compiles and runs are left to it, where it has its emulator."""

import json
import platform
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from native import arm

CSRC = Path(__file__).parents[2] / "csrc"
OTHERS = {"x86_64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}


@pytest.mark.parametrize("machine", [each for each in OTHERS if each != platform.machine()])
def test_every_file_compiles(machine, tmp_path):
    compiler = shutil.which(OTHERS[machine])
    if compiler is None or arm.CMAKE is None:
        pytest.skip(f"needs cmake and {OTHERS[machine]}")
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
    }
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(
        [arm.CMAKE, "-S", CSRC, "-B", tmp_path, *definitions], check=True, capture_output=True
    )
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    everywhere = "kernels_neon.cpp" if machine == "aarch64" else "kernels_scalar.cpp"
    assert {Path(each["file"]).name for each in commands} >= {"library.cpp", everywhere}
    assert (machine == "x86_64") == any("avx512" in each["file"] for each in commands)

    if machine == "aarch64" and not arm.missing():
        commands = [each for each in commands if not arm.is_run(each)]

    def check(each):
        """All of the compiler but its optimiser and its output."""
        words = [word for word in shlex.split(each["command"]) if not word.startswith("-O")]
        return subprocess.run([*words, "-fsyntax-only"], capture_output=True, text=True)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(check, commands))
    assert not [done.stderr for done in results if done.returncode]
