"""The instruction sets of an x86 CPU are found, with nothing that only some compilers bring."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
SCALAR, AVX2, AVX512, AMX = range(4)  # in abi.h
PRINTS = """#include <cstdio>
#include "isa/detect.h"
int main() { std::printf("%d %d", int(blockscale::best_isa()), int(blockscale::has_vnni())); }
"""
compiler = shutil.which("c++")
pytestmark = [
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="is for x86-64"),
    pytest.mark.skipif(compiler is None, reason="needs c++"),
]


def build(tmp_path, *arguments):
    run = [compiler, "-std=c++17", "-O1", "-I", CSRC, *arguments, CSRC / "isa" / "detect.cpp"]
    subprocess.run([*run, "-o", tmp_path / "made"], check=True)
    return tmp_path / "made"


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs /proc/cpuinfo")
def test_what_is_found_is_what_the_system_says(tmp_path):
    """The system leaves out of its flags whatever it keeps no registers for."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    source = tmp_path / "prints.cpp"
    source.write_text(PRINTS)
    told = subprocess.run(build(tmp_path, source), check=True, capture_output=True, text=True)
    best, vnni = map(int, told.stdout.split())
    if not flags >= {"avx2", "fma", "f16c"}:
        expected = {SCALAR}
    elif not flags >= {"avx512f", "avx512bw", "avx512vl", "avx512dq"}:
        expected = {AVX2}
    elif not flags >= {"amx_tile", "amx_bf16", "amx_int8"}:
        expected = {AVX512}
    else:
        expected = {AVX512, AMX}  # some sandboxes do not let a process have AMX
    assert best in expected
    assert vnni == (best >= AVX512 and "avx512_vnni" in flags)


def test_nothing_is_asked_of_the_compilers_runtime(tmp_path):
    """Its table of the CPU is not in every compiler's, and a wheel would not link."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm")
    made = build(tmp_path, "-c", "-fPIC")
    told = subprocess.run([nm, made], check=True, capture_output=True, text=True)
    names = told.stdout.split()
    assert any("best_isa" in name for name in names)
    assert not [name for name in names if name.startswith("__cpu")]
