"""Calls of the ops by programs that are compiled: cheap where nobody watches, seen where somebody
does."""

import pytest
import torch
import torch._dynamo.testing  # torch._dynamo alone does not bring it
import torch.testing._internal.two_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale import ops
from blockscale.ops import by_address
from blockscale.ops.untraced import _disabled, untraced
from blockscale.runtime import load_native

needs_native = pytest.mark.skipif(isinstance(load_native(), str), reason=str(load_native()))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.fixture
def w():
    return bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()


def call(w, x, bias=None):
    described = ops.MatmulCall(
        ops.plain(x), [w.operand], [bias], None, "", "", (), None, torch.float32
    )
    return ops.matmul(*ops.op_arguments(described))


@needs_native
def test_a_call_like_one_before_it_makes_no_operands(w, monkeypatch):
    made, call_of = [], by_address.call_of
    monkeypatch.setattr(by_address, "call_of", lambda *a: made.append(a) or call_of(*a))
    run = torch.compile(lambda x: bs.matmul(x, w), fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 64)
    expected = bs.matmul(x, w)
    for _ in range(4):
        assert torch.equal(run(x), expected)
    assert len(made) == 1


def settle(w, x):
    """So that the keys of such calls are known as those that nobody watched."""
    with torch.no_grad():
        call(w, x)
        return call(w, x)


def test_a_mode_sees_the_op(w):
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            seen.append(function)
            return function(*arguments, **(named or {}))

    x, seen = torch.randn(3, 64), []
    settle(w, x)
    with torch.no_grad(), Seeing():
        call(w, x)
    assert ops.matmul in seen


def test_a_subclass_sees_the_op(w):
    x = torch.randn(3, 64)
    expected = settle(w, x)
    both = torch.testing._internal.two_tensor.TwoTensor(x, 2 * x)
    with torch.no_grad():
        y = call(w, both)
    assert torch.equal(y.a, expected)
    assert torch.allclose(y.b, 2 * expected)


def test_gradients_are_seen(w):
    x = torch.randn(3, 64)
    settle(w, x)
    leaf = x.clone().requires_grad_()
    call(w, leaf).sum().backward()
    assert torch.allclose(leaf.grad, w.dequantize(torch.float32).sum(0).expand(3, 64), atol=1e-5)


def test_a_sign_is_seen(w):
    x = torch.randn(3, 64)
    expected = settle(w, x)
    with torch.no_grad():
        assert torch.equal(call(w, torch._neg_view(x)), -expected)


@pytest.mark.parametrize("mark", [untraced, _disabled])
def test_the_compiler_does_not_step_into_a_kernel(mark):
    def inner(x):
        return x.cos()

    kernel = mark(lambda x: inner(x.sin()))
    counter = torch._dynamo.testing.CompileCounter()
    uncompiled = torch.compiler.disable(lambda x: kernel(x), recursive=False)
    run = torch.compile(lambda x: uncompiled(x + 1), backend=counter)
    x = torch.randn(3)
    assert torch.equal(run(x), (x + 1).sin().cos())
    assert counter.frame_count == 1  # x + 1
