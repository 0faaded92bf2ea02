"""Gradients of eager calls and of ops: found out once, and right whatever happens in between."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import blockscale as bs
from blockscale import ops
from blockscale.kernels import KERNELS
from blockscale.ops.product_ops import OpLibrary
from blockscale.runtime import load_native, torch_private

needs_native = pytest.mark.skipif(isinstance(load_native(), str), reason=str(load_native()))


@pytest.fixture
def w():
    return bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()


@pytest.fixture
def bound(monkeypatch):
    """How often a kernel is bound to weights, by verb."""
    counts = dict.fromkeys(KERNELS, 0)
    for verb, kernels in KERNELS.items():
        for kernel in kernels:

            def counting(problem, config, weights=(), frozen=False, verb=verb, bind=kernel.bind):
                counts[verb] += bool(weights)
                return bind(problem, config, weights, frozen)

            monkeypatch.setattr(kernel, "bind", counting)
    return counts


def arguments(w, x, out=torch.float32):
    call = ops.MatmulCall(ops.plain(x), [w.operand], [None], None, "", "", (), None, out)
    return ops.op_arguments(call)


@needs_native
def test_an_op_binds_a_kernel_once(w, bound):
    x = torch.randn(3, 64)
    first = ops.matmul(*arguments(w, x))
    for _ in range(3):
        assert torch.equal(ops.matmul(*arguments(w, x)), first)
    assert bound["matmul"] == 1
    ops.matmul(*arguments(w, torch.randn(2, 64)))
    assert bound["matmul"] == 2


@needs_native
def test_a_forward_under_gradients_has_the_plan_of_one_without(w, bound):
    x = torch.randn(2, 3, 64)
    expected = bs.matmul(x, w)
    x.requires_grad_()
    for _ in range(3):
        assert torch.equal(bs.matmul(x, w), expected)
    assert bound["matmul"] == 1


@needs_native
def test_a_backward_chooses_once(w, monkeypatch):
    described = []
    plan = ops.by_address._plan_gradient
    monkeypatch.setattr(
        ops.by_address, "_plan_gradient", lambda *facts: described.append(1) or plan(*facts)
    )
    x = torch.randn(2, 64, requires_grad=True)
    for _ in range(3):
        bs.matmul(x, w).sum().backward()
    assert described == [1]
    torch.testing.assert_close(x.grad, 3 * w.dequantize().sum(0).expand(2, -1))


def test_plans_of_ops_follow_what_the_weights_hold(w):
    x, other = torch.randn(3, 64), bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()
    ops.matmul(*arguments(w, x))
    for mine, theirs in zip(w.tensors, other.tensors, strict=True):
        mine.data.copy_(theirs)
    assert torch.equal(ops.matmul(*arguments(w, x)), bs.matmul(x, other))


def test_plans_of_ops_keep_no_weights_alive():
    w = bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()
    x = torch.randn(3, 64, requires_grad=True)
    ops.matmul(*arguments(w, x.detach()))
    bs.matmul(x, w).sum().backward()
    codes = weakref.ref(w.codes)
    del w
    gc.collect()
    assert codes() is None


def test_a_kernel_that_is_turned_off_is_not_used_again(w, monkeypatch):
    x = torch.randn(3, 64, requires_grad=True)
    ops.matmul(*arguments(w, x.detach()))
    bs.matmul(x, w).sum().backward()
    for verb in ("matmul", "input_grad"):
        monkeypatch.setitem(KERNELS, verb, KERNELS[verb][-1:])
    ops.choose.cache_clear()
    ran = []
    for verb in ("matmul", "input_grad"):
        kernel = KERNELS[verb][0]
        bind = kernel.bind
        monkeypatch.setattr(kernel, "bind", lambda *a, bind=bind: ran.append(1) or bind(*a))
    ops.matmul(*arguments(w, x.detach()))
    assert ran
    ran.clear()
    bs.matmul(x.detach().requires_grad_(), w).sum().backward()
    assert len(ran) >= 2
    ops.choose.cache_clear()


def test_weights_that_change_before_the_backward_are_noticed(w):
    x = torch.randn(3, 64, requires_grad=True)
    y = bs.matmul(x, w)
    w.scale.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_plain_product_lets_x_go(w):
    x = torch.randn(3, 64, requires_grad=True)
    hidden = x * 2
    y = bs.matmul(hidden, w)
    seen = weakref.ref(hidden)
    del hidden
    gc.collect()
    assert seen() is None
    y.sum().backward()


@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 64), (64,)], ids=str)
def test_a_result_can_be_changed_in_place(w, shape):
    x, bias = torch.randn(shape, requires_grad=True), torch.randn(24, requires_grad=True)
    y = bs.linear(x, w, bias)
    y.mul_(2)
    y.sum().backward()
    rows = x.numel() // 64
    torch.testing.assert_close(x.grad, 2 * w.dequantize().sum(0).expand(shape))
    assert bias.grad.tolist() == [2.0 * rows] * 24


@pytest.mark.parametrize("gated", [False, True])
def test_gradients_of_gradients(w, gated):
    """Of a penalty on the gradient, against the same of the decoded weights."""
    up = bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()
    g, u = w.dequantize(), up.dequantize()
    start = torch.randn(3, 64) / 8

    def ours(x):
        return bs.gated_matmul(x, w, up) if gated else bs.matmul(x, w)

    def dense(x):
        return torch.nn.functional.silu(x @ g.T) * (x @ u.T) if gated else x @ g.T

    found = []
    for product in (ours, dense):
        x = start.clone().requires_grad_()
        (first,) = torch.autograd.grad(product(x).square().sum(), x, create_graph=True)
        first.square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3 * found[1].abs().max().item())


def test_a_checkpoint_computes_it_again(w):
    x = torch.randn(3, 64, requires_grad=True)
    checkpoint(lambda x: bs.matmul(x * 2, w).square(), x, use_reentrant=False).sum().backward()
    twin = x.detach().clone().requires_grad_()
    bs.matmul(twin * 2, w).square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)


@pytest.mark.fault(
    "torch renames something of its private API",
    outcome="its own kernel for gradients is taken",
)
@pytest.mark.parametrize("name", ["_AutoDispatchBelowAutograd", "_after_autograd_keyset"])
def test_torch_can_differentiate_the_ops(w, monkeypatch, name):
    monkeypatch.delattr(torch._C, name)
    assert torch_private.find_below_autograd() is None
    monkeypatch.undo()
    library = OpLibrary(f"blockscale_without{name}", None)
    op = library.define_product("gated_matmul")
    up = bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()
    found = []
    for gated in (op, ops.gated_matmul):
        torch.manual_seed(0)
        x, bias = torch.randn(3, 64, requires_grad=True), torch.randn(24, requires_grad=True)
        both, facts = [w.operand, up.operand], ("silu", "", (), None, torch.float32)
        call = ops.MatmulCall(ops.plain(x), both, [None, bias], None, *facts)
        gated(*ops.op_arguments(call)).sum().backward()
        found.append((x.grad, bias.grad))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_tangent_is_refused_rather_than_lost(mode):
    w, x, tangent = bs.quantize(torch.randn(8, 64), bs.NVFP4), torch.randn(3, 64), torch.ones(3, 64)
    expected = bs.matmul(x, w)
    with forward_ad.dual_level(), mode():
        dual = forward_ad.make_dual(x, tangent)
        with pytest.raises(NotImplementedError, match="matmul has no derivative in forward mode"):
            bs.matmul(dual, w)
        with pytest.raises(NotImplementedError, match="gated_matmul has no derivative"):
            bs.gated_matmul(dual, w, w)
        assert bs.matmul(x, w).equal(expected)  # others are served meanwhile
    with mode(), pytest.raises(NotImplementedError, match="in reverse mode"):
        torch.func.jvp(lambda x: bs.matmul(x, w), (x,), (tangent,))


@pytest.mark.parametrize(
    "sizes",
    [
        torch.tensor([3, 2], dtype=torch.int16),
        torch.tensor([5]),
        torch.empty(2, device="meta").int(),
    ],
    ids=["int16", "one entry", "another device"],
)
def test_group_sizes_that_a_kernel_would_misread_are_refused(sizes):
    """By the op, which no forward has checked them for: kernels take their address."""
    w = bs.quantize(torch.randn(2, 24, 64), bs.NVFP4)
    facts = list(w.tensors), w.operand.kind, list(w.shape)
    with pytest.raises((TypeError, ValueError), match="group_sizes"):
        ops.by_address.run_input_grad(torch.randn(5, 24), w.operand, sizes, torch.float32)
    good = torch.tensor([3, 2])
    assert ops.input_grad(torch.randn(5, 24), *facts, good, torch.float32).shape == (5, 64)


def of_input_grad(**changes):
    """Arguments that the op takes, but for `changes`."""
    w = bs.quantize(torch.randn(2, 24, 64), bs.NVFP4)
    right = {"grad": torch.randn(2, 5, 24), "w": list(w.tensors), "w_kind": w.operand.kind}
    right |= {"w_shape": list(w.shape), "group_sizes": None, "dtype": torch.float32}
    return right | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grad": torch.randn(2, 5, 16)}, "grad has n=16 but w has n=24"),
        ({"grad": torch.tensor(1.0)}, "grad has n=0 but w has n=24"),
        ({"grad": torch.randn(2, 5, 24).double()}, "grad must be float32, bfloat16 or float16"),
        ({"grad": torch.randn(3, 5, 24)}, r"a batch of 2 matrices, so grad must be \[2, m, 24\]"),
        ({"grad": torch.randn(10, 24)}, r"a batch of 2 matrices, so grad must be \[2, m, 24\]"),
        ({"group_sizes": torch.tensor([3, 2])}, r"grad must be \[m, n\], rows sorted by expert"),
        ({"w_shape": [2, 24, 128]}, r"codes of w must be \[2, 24, 64\]"),
        ({"w_shape": [1, 2, 24, 64]}, r"w must be \[n, k\] or \[l, n, k\]"),
        ({"dtype": torch.float64}, "out_dtype must be float32"),
    ],
)
def test_input_grad_refuses_what_its_kernels_would_read_wrongly(changes, said):
    """Kernels take addresses; a compiler hears of it from the fake, before anything runs."""
    arguments = of_input_grad(**changes)
    with pytest.raises((TypeError, ValueError), match=f"input_grad: .*{said}"):
        ops.input_grad(**arguments)
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises((TypeError, ValueError), match=f"input_grad: .*{said}"),
    ):
        ops.input_grad(**arguments)


def test_input_grad_takes_what_was_changed():
    assert ops.input_grad(**of_input_grad()).shape == (2, 5, 64)
