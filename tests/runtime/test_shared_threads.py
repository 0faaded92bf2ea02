"""Whose threads native code works on, and how many."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hanging
from blockscale.runtime import load_native, shared_threads
from fresh_process import run_program

native = load_native()
needs_native = pytest.mark.skipif(isinstance(native, str), reason=str(native))

ONE_TEAM = """
import torch, blockscale as bs
from pathlib import Path
from blockscale.runtime import load_native

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

torch.set_num_threads(2)
w, x = bs.quantize(torch.randn(512, 512), bs.KBIT4).prepare(), torch.randn(1, 512)
torch.ones(1 << 22).add_(1)
before = threads()
for _ in range(4):
    bs.matmul(x, w)
print(load_native().threads, "|", threads() - before)
"""


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="torch's threads are entered on Linux")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_product_starts_no_thread_beside_those_of_torch():
    done = run_program(ONE_TEAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "torch's OpenMP threads | 0"


# Its regions run on the thread that enters them, and are counted.
OTHER_RUNTIME = """
static int regions = 0;
int regions_entered(void) { return regions; }
void GOMP_parallel(void (*region)(void*), void* data, unsigned threads, unsigned flags) {
  ++regions;
  region(data);
}
int omp_get_thread_num(void) { return 0; }
int omp_get_num_threads(void) { return 1; }
int omp_get_max_threads(void) { return 2; }
int omp_get_num_procs(void) { return 2; }
int omp_in_parallel(void) { return 0; }
int omp_pause_resource_all(int kind) { return 0; }
"""
COUNTED = (
    ONE_TEAM.replace("    bs.matmul(x, w)", "    entered = regions(); bs.matmul(x, w)")
    + """
print(threads() - before, regions() - entered)
"""
)
REGIONS = "import ctypes; regions = ctypes.CDLL(None).regions_entered\n"


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="torch's threads are entered on Linux")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_runtime_that_is_preloaded_is_torchs(tmp_path):
    """Torch's calls go to it, although torch is linked to another."""
    source, library = tmp_path / "runtime.c", tmp_path / "runtime.so"
    source.write_text(OTHER_RUNTIME)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    done = subprocess.run(
        [sys.executable, "-c", REGIONS + COUNTED],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True, text=True, timeout=hanging.SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 1"


def test_a_torch_without_openmp_is_said(monkeypatch):
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "backend: native thread pool")
    monkeypatch.setattr(sys, "platform", "linux")
    shared_threads._find_openmp.cache_clear()
    assert shared_threads.share_torch_threads(None) == (
        "threads of its own: torch does not use OpenMP"
    )
    shared_threads._find_openmp.cache_clear()


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A tree of control groups with the process in container/inner, limited as the test says."""
    monkeypatch.setattr(shared_threads, "_CGROUPS", tmp_path)
    monkeypatch.setattr(
        shared_threads, "_own_cgroups",
        lambda: [tmp_path / "container" / "inner", tmp_path / "container", tmp_path],
    )  # fmt: skip
    (tmp_path / "container" / "inner").mkdir(parents=True)
    shared_threads._container_limit.cache_clear()
    yield tmp_path / "container"
    shared_threads._container_limit.cache_clear()


@pytest.mark.fault(
    "a container may use half a core, or the number of threads is one or a thousand",
    outcome="as many threads as the container can keep busy, at least one; right results",
)
@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "max 100000"}, 1000),
        ({"cpu.max": "nonsense"}, 1000),
        ({"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 1000),
        ({}, 1000),
    ],
)
def test_a_container_limits_threads(cgroup, monkeypatch, files, threads):
    for name, text in files.items():
        (cgroup / name).write_text(text + "\n")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert shared_threads.usable_threads() == threads
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert shared_threads.usable_threads() == 1


def test_groups_around_the_own_one_count():
    found = shared_threads._own_cgroups()
    assert all(folder.is_relative_to(Path("/sys/fs/cgroup")) for folder in found)
