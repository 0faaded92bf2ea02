"""On a GPU: streams at once, memory that runs out, a process beside this one that is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SECONDS = 120  # before something counts as hanging
WAIT = 100_000_000  # cycles: some 50 ms, in which a host comes far ahead


def layer_of(n=512, k=1024):
    torch.manual_seed(0)
    return bs.nn.Linear.from_qtensor(bs.quantize(torch.randn(n, k, device="cuda"), bs.NVFP4))


@pytest.fixture
def expected():
    """x, and the product of a layer that was packed long ago. Kernels are compiled by then."""
    x, layer = torch.randn(4, 1024, device="cuda", dtype=torch.bfloat16), layer_of()
    y = layer(x)
    torch.cuda.synchronize()
    return x, y


@pytest.mark.fault(
    "a second thread uses a module on another CUDA stream while the first still packs its weights",
    outcome="the second stream waits for the packing: the result is right",
)
def test_another_stream_waits_for_the_packing(expected):
    x, y = expected
    layer, packed = layer_of(), threading.Event()
    torch.cuda.synchronize()

    def first():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(WAIT)  # the packing is queued behind it
            result = layer(x)
            packed.set()
            stream.synchronize()
        return result

    def second():
        assert packed.wait(SECONDS)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            result = layer(x)
            stream.synchronize()
        return result

    with ThreadPoolExecutor(2) as pool:
        results = [each.result(SECONDS) for each in [pool.submit(first), pool.submit(second)]]
    assert all(result.equal(y) for result in results)


@pytest.mark.fault(
    "bytes that are still being packed are freed, and their memory is asked for on their stream",
    outcome="the memory is not given away before they have been read: the result is right",
)
def test_bytes_that_are_still_packed_are_not_overwritten(expected):
    x, y = expected
    layer, stream = layer_of(), torch.cuda.Stream()
    sizes = [part.nbytes for part in layer.weight.tensors]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT)
        result = layer(x)  # the canonical bytes, which the default stream allocated, are dropped
    taken = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes * 4]
    stream.synchronize()
    assert result.equal(y)
    assert len(taken) == 4 * len(sizes)


@pytest.mark.fault(
    "the first use of a module, which packs its weights, is captured in a CUDA graph",
    outcome="RuntimeError that says to use it once before; the module is as it was",
)
def test_packing_is_not_captured(expected):
    x, y = expected
    layer, graph = layer_of(), torch.cuda.CUDAGraph()
    one = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="before capturing"):
            layer(x)
        one += 1
    assert layer(x).equal(y)
    with torch.cuda.graph(again := torch.cuda.CUDAGraph()):
        captured = layer(x)
    again.replay()
    torch.cuda.synchronize()
    assert captured.equal(y)


@pytest.fixture
def little_memory():
    """Ends with all of the device's."""
    total, held = torch.cuda.get_device_properties(0).total_memory, []

    def limit_to(more):
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)

    def leave(more):
        torch.cuda.empty_cache()  # what is kept for later would be more
        limit_to(0)
        # So would the rest of a segment where a tensor of an earlier test still lies.
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                held.append(torch.empty(more, dtype=torch.uint8, device="cuda"))
        limit_to(more)

    yield leave
    held.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.fault(
    "the GPU has no memory for the result of a verb, or for what it packs",
    outcome="torch.OutOfMemoryError; the next call that fits is right",
)
@pytest.mark.parametrize("verb", ["matmul", "dequantize", "quantize", "prepare"])
def test_memory_of_the_gpu_runs_out(verb, little_memory):
    large, k = 1 << 15, 4096  # 128 Mi weights: 64 MiB and more of anything that is made of them
    values = torch.randn(large, k, device="cuda", dtype=torch.bfloat16)
    q = bs.quantize(values, bs.NVFP4)
    x, small = torch.randn(1 << 13, k, device="cuda", dtype=torch.bfloat16), q[:512]
    work = {
        "matmul": lambda q, x, values: bs.matmul(x, q),
        "dequantize": lambda q, x, values: q.dequantize(torch.bfloat16),
        "quantize": lambda q, x, values: bs.quantize(values, bs.NVFP4).codes,
        "prepare": lambda q, x, values: q.prepare().codes,
    }[verb]
    expected = work(small, x[:4], values[:512])
    torch.cuda.synchronize()
    little_memory(24 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        work(q, x, values)
    assert work(small, x[:4], values[:512]).equal(expected)


BUSY = """
import torch, blockscale as bs
w = bs.quantize(torch.randn(4096, 4096, device="cuda"), bs.NVFP4).prepare()
x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
bs.matmul(x, w)
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    bs.matmul(x, w)
"""


@pytest.mark.fault(
    "another process that computes on the same GPU is killed (SIGKILL)",
    outcome="results of this process stay right",
)
def test_a_process_beside_this_one_is_killed(expected):
    x, y = expected
    layer = layer_of()
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        try:
            assert child.stdout.readline().strip() == "ready"
            assert layer(x).equal(y)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(SECONDS)
            child.stdout.close()
        assert all(layer(x).equal(y) for _ in range(50))
        torch.cuda.synchronize()
