"""On a GPU: a kernel is compiled, loaded, launched, captured, and refused in words."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockscale.runtime import device_of, gpu
from blockscale.runtime.cuda import Build, CudaError, cuda_refusal, current_stream, function

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SOURCE = str(Path(__file__).parents[1] / "runtime" / "sources" / "sample.cu")
COUNT = torch.cuda.device_count()


class Arguments(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("x", ctypes.c_void_p))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKSCALE_CACHE", str(tmp_path / "cubins"))


def sample(factor):
    return Build(SOURCE, "sample", (("SPILLS", 0), ("MULTIPLIES", 0), ("FACTOR", factor)))


class Scaled:
    """out = factor * x, by the kernel of the tests."""

    def __init__(self, factor, device="cuda:0"):
        self.device = torch.device(device)
        self.kernel = function(sample(factor), self.device)
        self.x = torch.arange(128, dtype=torch.int32, device=device)
        self.out = torch.full((128,), torch.nan, device=device)
        self.expected = factor * self.x.float()

    def launch(self, shared=0, grid=(1, 1, 1), threads=128):
        arguments = Arguments(self.out.data_ptr(), self.x.data_ptr())
        self.kernel.launch(grid, threads, shared, current_stream(self.device), arguments)

    def check(self):
        torch.cuda.synchronize(self.device)
        assert torch.equal(self.out, self.expected)


def test_nothing_stands_in_the_way():
    assert cuda_refusal(device_of(torch.device("cuda", 0))) is None


def test_the_table_of_gpus_tells_what_the_driver_does():
    """Else other configs would run than `explain --gpu` says."""
    here = device_of(torch.device("cuda", 0))
    if here.name != gpu("h200").name:
        pytest.skip(f"{here.name}: the table is held to the driver of an H200")
    assert replace(here, live=False) == gpu("h200")


def test_a_kernel_runs():
    scaled = Scaled(3)
    assert 0 < scaled.kernel.registers < 64
    assert scaled.kernel.shared_bytes >= 512
    assert scaled.kernel.local_bytes == 0
    assert scaled.kernel.occupancy(128, 0) >= 8
    assert 1 <= scaled.kernel.occupancy(128, 80_000) <= 2
    scaled.launch()
    scaled.check()


def test_large_shared_memory():
    scaled = Scaled(5)
    scaled.launch(shared=90_000)
    scaled.check()


def test_on_a_stream_of_ones_own():
    scaled, stream = Scaled(7), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert current_stream(scaled.device) == stream.cuda_stream
        scaled.launch()
    scaled.check()


def test_the_first_launch_may_be_in_a_graph():
    scaled, graph = Scaled(9), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled.launch()
    scaled.out.fill_(torch.nan)
    graph.replay()
    scaled.check()


def test_nothing_is_compiled_in_a_graph():
    x, graph = torch.ones(1, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="make the same call once before capturing"):
            function(sample(11), torch.device("cuda", 0))
        x += 1
    graph.replay()  # the capture was not spoilt
    torch.cuda.synchronize()


def test_from_a_thread_that_has_not_used_cuda():
    scaled = Scaled(13)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(scaled.launch).result()
    scaled.check()


@pytest.mark.skipif(COUNT < 2, reason=f"{COUNT} GPU")
def test_on_a_gpu_that_is_not_the_current_one():
    scaled = Scaled(15, "cuda:1")
    scaled.launch()
    scaled.check()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"grid": (0, 1, 1)}, r"grid \(0, 1, 1\), 128 threads, 0 shared bytes: CUDA_ERROR_INVALID"),
        ({"threads": 4096}, "4096 threads, 0 shared bytes: CUDA_ERROR_INVALID_VALUE: "),
        ({"shared": 2**20}, "1048576 bytes of dynamic shared memory: CUDA_ERROR_INVALID_VALUE: "),
    ],
)
def test_what_cannot_be_launched_is_refused_in_words(asked, words):
    scaled = Scaled(17)
    with pytest.raises(CudaError, match=words):
        scaled.launch(**asked)
    scaled.launch()  # and the next one is well
    scaled.check()


def test_a_launch_costs_the_host_microseconds():
    """Best of a few hundred: 20 us leaves room for slow machines, and none for a lookup by name."""
    scaled = Scaled(19)
    arguments = Arguments(scaled.out.data_ptr(), scaled.x.data_ptr())
    stream = current_stream(scaled.device)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        scaled.kernel.launch((1, 1, 1), 128, 0, stream, arguments)
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    print(f"launch: {1e6 * min(times):.2f} us at best, {1e6 * sorted(times)[150]:.2f} us typically")
    assert min(times) < 20e-6
