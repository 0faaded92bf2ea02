"""Native calls for which the system has too little memory or too few threads: a MemoryError that
says how much was asked for, or the right result; and the next call is as if nothing had been."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hanging
import ways
from fresh_process import run_program

HERE = Path(__file__).parent
TESTS = HERE.parent
pytestmark = [
    pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING),
    pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD and RLIMIT_AS"),
]

LIMITED = """
import resource, torch
import blockscale as bs
from pathlib import Path

def limit(more):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard if more is None else used + more, hard))

torch.set_num_threads(2)
small, large = torch.randn(5, 4096), torch.randn(8192, 4096)
w = bs.quantize(torch.randn(16, 4096), bs.NVFP4).prepare()
expected, expected_large = bs.matmul(small, w), bs.matmul(large, w)

torch.set_num_threads(40)
limit(1 << 20)  # not even the stack of one thread
print("no threads", torch.equal(bs.matmul(small, w), expected))
limit(32 << 20)
try:
    bs.matmul(large, w)
except MemoryError as error:
    print("error", error)
print("meanwhile", torch.equal(bs.matmul(small, w), expected))
limit(None)
print("threads", torch.equal(bs.matmul(small, w), expected))
print("large", torch.equal(bs.matmul(large, w), expected_large))
"""


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
        capture_output=True, text=True, timeout=hanging.SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.fault(
    "any one allocation of a native call is refused, or all from some one on",
    outcome="MemoryError that names the bytes, or the right result; the next call is right",
)
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_any_allocation_may_be_refused(tmp_path):
    library, source = tmp_path / "failing_malloc.so", TESTS / "native" / "failing_malloc.cpp"
    build = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", source, "-o", library]
    subprocess.run(build, check=True)
    done = run(HERE / "failing_calls.py", LD_PRELOAD=str(library))
    assert done.returncode == 0, done.stderr
    every = [json.loads(line) for line in done.stdout.splitlines()]
    functions = {function for each in every for function in each["functions"]}
    assert functions >= {"bs_stream", "bs_gemm", "bs_int8"}
    assert functions >= {"bs_quantize", "bs_dequantize", "bs_repack", "bs_amax"}
    for each in every:
        ends = {end for end, times in each["ends"].items() if times}
        assert ends == {"right", "MemoryError"}, each
        assert "the system refused " in each["message"]


@pytest.mark.fault(
    "the process reaches its limit of memory: no room for threads, or for a product of many rows",
    outcome="fewer threads and the same bits; MemoryError that names the bytes",
)
def test_a_limit_of_the_process_is_an_error_that_names_the_bytes():
    done = run_program(LIMITED)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    error = next(line for line in lines if line.startswith("error"))
    rows = 8192 * 4096 * 4  # float32 x, arranged for the kernel
    assert f"the system refused {rows:,} bytes" in error
    assert [line for line in lines if line != error] == [
        "no threads True",
        "meanwhile True",
        "threads True",
        "large True",
    ]
