"""Eager calls skip torch's dispatcher, unless somebody watches: then there is an op to see."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale import ops


class Dispatched(TorchDispatchMode):
    """Names of the ops that reach the dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


@pytest.fixture
def called(monkeypatch):
    """How often the op was called."""
    calls, matmul_op = [], ops.matmul

    def counting(*args):
        calls.append(args)
        return matmul_op(*args)

    monkeypatch.setattr(ops, "matmul", counting)
    return calls


@pytest.fixture
def operands():
    return torch.randn(3, 64), bs.quantize(torch.randn(8, 64), bs.NVFP4).prepare()


def test_a_plain_call_skips_the_op(called, operands):
    x, w = operands
    y = bs.matmul(x, w)
    with torch.no_grad():
        assert torch.equal(bs.matmul(torch.nn.Parameter(x), w), y)
    with torch.inference_mode():
        assert torch.equal(bs.matmul(x, w), y)
    assert not called


def test_gradients_skip_the_op(called, operands):
    x, w = operands
    bs.matmul(x.requires_grad_(), w).sum().backward()
    torch.testing.assert_close(x.grad, w.dequantize().sum(0).expand(3, -1))
    bs.linear(x.detach(), w, torch.zeros(8, requires_grad=True)).sum().backward()
    assert not called


@pytest.mark.parametrize("mode", [Dispatched, Functions])
def test_modes_see_the_op_under_gradients(called, operands, mode):
    x, w = operands
    x.requires_grad_()
    with mode():
        y = bs.matmul(x, w)
    assert len(called) == 1
    with Dispatched() as seen:
        y.sum().backward()
    assert "blockscale.input_grad.default" in seen.names
    torch.testing.assert_close(x.grad, w.dequantize().sum(0).expand(3, -1))


@pytest.mark.parametrize("mode", [Dispatched, Functions])
def test_modes_see_the_op(called, operands, mode):
    x, w = operands
    plain = bs.matmul(x, w)
    with mode() as seen:
        y = bs.matmul(x, w)
    assert torch.equal(y, plain)
    assert len(called) == 1
    assert (
        any("blockscale" in name and "matmul" in name for name in seen.names) or mode is Functions
    )
    bs.matmul(x, w)
    assert len(called) == 1


def test_a_dispatch_mode_sees_every_verb():
    gate, up = (bs.quantize(torch.randn(2, 8, 64), bs.NVFP4).prepare() for _ in range(2))
    x, sizes = torch.randn(3, 64), torch.tensor([1, 2])
    with Dispatched() as seen:
        bs.matmul(x, gate[0])
        bs.gated_matmul(x, gate[0], up[0])
        bs.grouped_matmul(x, gate, sizes)
        bs.grouped_gated_matmul(x, gate, up, sizes)
    for verb in ("matmul", "gated_matmul", "grouped_matmul", "grouped_gated_matmul"):
        assert f"blockscale.{verb}.default" in seen.names


def test_subclasses_go_through_the_op(called, operands):
    x, w = operands
    bs.matmul(x.as_subclass(Subclass), w)
    assert len(called) == 1


def test_compile_keeps_one_graph(operands):
    x, w = operands
    compiled = torch.compile(lambda x: bs.linear(x * 2, w).relu(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), bs.linear(x * 2, w).relu())


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("ahead", [False, True], ids=["below_autograd", "ahead_of_autograd"])
def test_make_fx_traces_the_op(operands, mode, ahead):
    x, w = operands
    trace = make_fx(
        lambda x: bs.matmul(x, w) + 1,
        tracing_mode=mode,
        pre_dispatch=ahead,
        _allow_non_fake_inputs=True,
    )
    graph = trace(x)
    assert "blockscale.matmul.default" in [str(node.target) for node in graph.graph.nodes]
    assert torch.equal(graph(x), bs.matmul(x, w) + 1)


def test_fake_tensors_are_not_computed(operands):
    _, w = operands
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.randn(3, 64))
        y = bs.matmul(fake, w, out_dtype=torch.bfloat16)
    assert y.shape == (3, 8)
    assert y.dtype == torch.bfloat16
    assert y.fake_mode is mode


def test_transforms_are_refused_rather_than_ignored(operands):
    x, w = operands
    with pytest.raises(RuntimeError, match="Batching rule not implemented for blockscale::matmul"):
        torch.func.vmap(lambda row: bs.matmul(row, w))(x)


def test_a_trace_holds_the_op(operands):
    """Native code writes its result behind torch's back: a trace without the op would lose it."""
    x, w = operands
    with pytest.warns(DeprecationWarning, match="trace"):
        traced = torch.jit.trace(lambda x: bs.matmul(x, w), (x,), check_trace=False)
    other = torch.cat((x, -x))  # of another number of rows
    assert torch.equal(traced(other), bs.matmul(other, w))
