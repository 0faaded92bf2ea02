"""Launch plans on a GPU. Skipped where there is none."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import blockscale as bs
from blockscale.runtime import load_replay
from blockscale.tensor import verbs

WITHOUT = load_replay() if isinstance(load_replay(), str) else ""
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("m", [1, 40])
def test_weights_that_change_in_place_are_seen(m):
    """From the third call on, frozen weights are copied before the kernel ahead has ended."""
    made = (bs.quantize(torch.randn(512, 2048), bs.NVFP4).prepare("cuda") for _ in "ab")
    first, second = (each.freeze() for each in made)
    x = torch.randn(m, 2048, device="cuda").bfloat16()
    expected = bs.matmul(x, second)
    for _ in range(5):
        bs.matmul(x, first)
    first.codes.copy_(second.codes)
    first.scale.copy_(second.scale)
    first.tensor_scale.copy_(second.tensor_scale)
    assert torch.equal(bs.matmul(x, first), expected)


def test_inference_mode():
    with torch.inference_mode():
        w = bs.quantize(torch.randn(64, 128, device="cuda"), bs.KBIT4).prepare()
        x = torch.randn(2, 128, device="cuda").bfloat16()
        first = bs.matmul(x, w)
        for _ in range(4):
            assert torch.equal(bs.matmul(x, w), first)


@pytest.mark.parametrize("m", [1, 40])
def test_a_chain_of_products_waits_for_its_inputs(m):
    """Each kernel may start before the one that writes its x has ended."""
    made = (bs.quantize(torch.randn(1024, 1024) / 32, bs.NVFP4).prepare("cuda") for _ in range(8))
    layers = [each.freeze() for each in made]

    def run(x):
        for w in layers:
            x = bs.matmul(x, w)
        return x

    x = torch.randn(m, 1024, device="cuda").bfloat16()
    first = run(x)
    for _ in range(50):
        torch.cuda._sleep(2_000_000)  # until all are in the queue: the host is slower than they are
        assert torch.equal(run(x), first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = run(x)
    for _ in range(50):
        last.zero_()
        graph.replay()
        assert torch.equal(last, first)


def test_a_table_that_changes_in_place_is_seen():
    """One whose halves mirror each other is decoded by a kernel of its own."""
    q = bs.quantize(torch.randn(64, 256), bs.KBIT4).prepare("cuda").freeze()
    x = torch.randn(1, 256, device="cuda").bfloat16()
    for _ in range(4):
        bs.matmul(x, q)
    q.codebook.copy_(torch.linspace(-0.5, 1.0, 16))
    expected = x.double() @ q.dequantize().double().T
    y = bs.matmul(x, q, out_dtype=torch.float32)
    torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=2e-1)


def test_more_rows_than_are_multiplied_at_a_time():
    """The blocks of a product that share its k meet once: see `_splits`."""
    w = bs.quantize(torch.randn(1024, 4096) / 64, bs.NVFP4).prepare("cuda")
    x = torch.randn(128, 4096, device="cuda").bfloat16()
    first = bs.matmul(x, w)
    expected = x.double() @ w.dequantize().double().T
    torch.testing.assert_close(first.double(), expected, rtol=2e-2, atol=2e-2)
    for _ in range(50):
        assert torch.equal(bs.matmul(x, w), first)


def test_many_rows_from_a_thread_that_has_not_used_cuda():
    w = bs.quantize(torch.randn(256, 512), bs.NVFP4).prepare("cuda")
    x = torch.randn(40, 512, device="cuda").bfloat16()
    expected = bs.matmul(x, w)
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(bs.matmul, x.clone(), w).result(), expected)


@pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
@pytest.mark.parametrize("shape", [(1,), (1, 1), (8,), (2, 20)], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_calls_are_repeated_without_python(shape, biased, monkeypatch):
    w = bs.quantize(torch.randn(4096, 2048), bs.NVFP4).prepare("cuda").freeze()
    x = torch.randn(*shape, 2048, device="cuda").bfloat16()
    bias = torch.randn(4096, device="cuda") if biased else None
    first = bs.linear(x, w, bias)
    for _ in range(3):
        bs.linear(x, w, bias)
    assert len(w.replays) == 1

    def python(*_, **__):
        raise AssertionError

    monkeypatch.setattr(verbs, "run", python)
    for _ in range(20):
        assert torch.equal(bs.linear(x, w, bias), first)
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        second = bs.linear(x, w, bias)
    other.synchronize()
    assert torch.equal(second, first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = bs.linear(x, w, bias)
    last.zero_()
    graph.replay()
    assert torch.equal(last, first)
    w.scale.copy_(w.scale)
    with pytest.raises(AssertionError):
        bs.linear(x, w, bias)
