"""int8 products for VNNI and for AMX, run by emulated instructions: the bits of the portable ones.

What this shows without such a CPU: what is looked up, how x is arranged, how tiles are configured,
and the order of sums.
"""

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
PARTS = {
    "PORTABLE": ["-DPORTABLE_KERNELS"],
    "VNNI": [*EMULATED, "-D__AVX512VNNI__"],
    "TILES": EMULATED,
    "ROWS": ["-ffp-contract=off"],
    "MAIN": [],
}


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_vnni_and_tiles_give_the_bits_of_portable_code(tmp_path):
    def compiled(part):
        to = tmp_path / f"{part}.o"
        command = [*BASE, *PARTS[part], f"-DPART_{part}", "-c", HERE / "int8_host.cpp", "-o", to]
        subprocess.run(command, check=True)
        return to

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, PARTS))
    subprocess.run(["c++", *SANITIZED, *objects, "-o", tmp_path / "int8_host"], check=True)
    found = subprocess.run([tmp_path / "int8_host"], capture_output=True, text=True)
    assert not found.stdout
    assert found.returncode == 0, found.stderr
