"""Programs of native code for VNNI and AMX on any machine, by emulated/immintrin.h."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
# Emulated, the code of every instruction set can be watched by the sanitizers on any machine.
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Optimising what the sanitizers add takes longer than it saves.
BASE = ["c++", "-std=c++17", "-O0", "-w", "-I", CSRC, *SANITIZED]
EMULATED = ["-I", HERE / "emulated", "-include", "immintrin.h", "-D__AVX512F__", "-D__AVX512BW__"]

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


def run_silently(source: str, parts: dict[str, list], folder: Path) -> None:
    """Compile `source` for each part, with its flags, and run it: it prints what is wrong."""

    def compiled(part: str) -> Path:
        to = folder / f"{part}.o"
        command = [*BASE, *parts[part], f"-DPART_{part}", "-c", HERE / source, "-o", to]
        subprocess.run(command, check=True)
        return to

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, parts))
    subprocess.run(["c++", *SANITIZED, *objects, "-o", folder / "program"], check=True)
    found = subprocess.run([folder / "program"], capture_output=True, text=True)
    assert not found.stdout
    assert found.returncode == 0, found.stderr
