"""Calls under autograd and under the compiler, on a GPU: replayed, and the same as eager ones."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul.sm90_gemm import workspace
from blockscale.ops import by_address
from blockscale.runtime import load_replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
_CALLS = 6  # the first few of which are made by Python


@pytest.fixture(autouse=True)
def _nothing_known():
    by_address._known.clear()
    torch._dynamo.reset()


def operands(m, fmt, n=512, k=1024):
    x = torch.randn(m, k, device="cuda").bfloat16()
    return x, bs.quantize(torch.randn(n, k), fmt).prepare("cuda")


@pytest.mark.parametrize("m", [1, 16, 300])
@pytest.mark.parametrize("fmt_", [bs.NVFP4, bs.KBIT4], ids=str)
def test_compiled_calls_are_replayed(m, fmt_):
    x, w = operands(m, fmt_)
    expected = bs.matmul(x, w)
    run = torch.compile(lambda x: bs.matmul(x, w), fullgraph=True, backend="aot_eager")
    for _ in range(_CALLS):
        assert torch.equal(run(x), expected)
    if not isinstance(load_replay(), str):
        assert any(known.replays for known in by_address._known.values())


@pytest.mark.parametrize("m", [1, 300])
def test_forwards_under_gradients_are_replayed(m):
    x, w = operands(m, bs.NVFP4)
    with torch.no_grad():
        expected = bs.matmul(x, w)
    x.requires_grad_()
    for _ in range(_CALLS):
        y = bs.matmul(x, w)
        assert torch.equal(y, expected)
    if not isinstance(load_replay(), str):
        assert w.replays
    y.backward(torch.ones_like(y))
    first, x.grad = x.grad, None
    bs.matmul(x, w).backward(torch.ones_like(y))
    assert torch.equal(x.grad, first)


def test_backwards_follow_weights_that_change():
    x, w = operands(300, bs.NVFP4)
    other = bs.quantize(torch.randn(512, 1024), bs.NVFP4).prepare("cuda")
    x.requires_grad_()
    bs.matmul(x, w).sum().backward()
    for mine, theirs in zip(w.tensors, other.tensors, strict=True):
        mine.copy_(theirs)
    found = []
    for each in (w, other):
        x.grad = None
        bs.matmul(x, each).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_a_captured_graph_allocates_one_workspace(monkeypatch):
    x, w = operands(300, bs.NVFP4, 1000, 2048)
    if "stream-K" not in str(bs.explain(x, w)):
        pytest.skip("no product of this size is split on this GPU")
    made, make = [], workspace._make
    monkeypatch.setattr(workspace, "_make", lambda *sizes: made.append(sizes) or make(*sizes))
    expected = bs.matmul(x, w)
    torch.cuda.synchronize()
    made.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [bs.matmul(x, w) for _ in range(5)]
    assert len(made) == 1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


def test_compiled_programs_follow_streams_and_weights_that_move():
    x, w = operands(16, bs.NVFP4)
    codes, scale = w.codes.clone(), w.scale.clone()
    run = torch.compile(lambda x: bs.matmul(x, w), fullgraph=True)
    expected = bs.matmul(x, w)
    for _ in range(_CALLS):
        assert torch.equal(run(x), expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = x * 2  # ready after the pause, on this stream alone
        y = run(late)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(y, 2 * expected)  # a power of two: exact
    w.codes.zero_()
    assert not run(x).any()
    w.codes.data, w.scale.data = codes, scale  # other memory
    for _ in range(_CALLS):
        assert torch.equal(run(x), expected)


def test_compiled_programs_in_cuda_graphs():
    x, w = operands(16, bs.NVFP4)
    run = torch.compile(lambda x: bs.matmul(x * 2, w) + 1, fullgraph=True, mode="reduce-overhead")
    expected = bs.matmul(x * 2, w) + 1
    for _ in range(_CALLS):
        assert torch.equal(run(x).clone(), expected)
