"""Calls on the same weights share a plan, and nobody can tell by the results."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

import blockscale as bs
from blockscale.kernels import KERNELS
from blockscale.ops import choose
from blockscale.runtime import load_native
from products import check, check_exact, check_gated, exact

needs_native = pytest.mark.skipif(isinstance(load_native(), str), reason=str(load_native()))


@pytest.fixture
def w():
    return bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare()


@needs_native
def test_a_second_call_finds_the_plan(w):
    x, bias = torch.randn(3, 64), torch.randn(24)
    first = bs.linear(x, w, bias)
    (plan,) = w.plans.values()
    assert plan.choice.kernel.NAME == "cpu"
    again = bs.linear(x, w, bias)
    assert list(w.plans.values()) == [plan]
    assert torch.equal(first, again)
    assert torch.equal(bs.linear(x, w), bs.matmul(x, w))
    assert len(w.plans) == 2


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_tensor_scales_per_row_are_part_of_a_plan(lead, dtype, monkeypatch):
    """As q, k and v have them where an engine makes one weight of the three."""
    rows = bs.quantize(torch.randn(*lead, 24, 64), bs.NVFP4, tensor_scale="row").prepare()
    x, bias = torch.randn(*lead, 3, 64).to(dtype), torch.randn(*lead, 24)
    biases = [None, bias, bias.to(dtype)]
    first = [bs.linear(x, rows, each) for each in biases]
    watched = [bs.linear(x.clone().requires_grad_(), rows, each) for each in biases]
    monkeypatch.setattr("blockscale.tensor.run.describe_call", None)  # it was checked once
    again = [bs.linear(x, rows, each) for each in biases]
    for one, two, three in zip(first, again, watched, strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@needs_native
def test_x_may_lie_otherwise(w):
    x = torch.randn(2, 3, 64)
    expected = bs.matmul(x, w)
    strided = torch.randn(2, 3, 128)[..., ::2]
    assert torch.equal(bs.matmul(x, w), expected)
    assert torch.equal(bs.matmul(strided, w), bs.matmul(strided.contiguous(), w))
    wide = torch.randn(6, 200)
    assert torch.equal(bs.matmul(wide[:, 7:71], w), bs.matmul(wide[:, 7:71].clone(), w))


@needs_native
def test_a_kernel_that_is_turned_off_is_not_remembered(w, monkeypatch):
    x = torch.randn(1, 64)
    bs.matmul(x, w)
    monkeypatch.setitem(KERNELS, "matmul", KERNELS["matmul"][-1:])
    choose.cache_clear()
    assert bs.explain(x, w).kernel == "reference"
    check_exact(bs.matmul(x, w), x.double() @ exact(w).T)  # rounded once: the definition has run
    (plan,) = w.plans.values()
    assert plan.choice.kernel.NAME == "reference"
    choose.cache_clear()


@needs_native
def test_up_is_part_of_the_plan(w):
    x = torch.randn(2, 64)
    ups = [bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare() for _ in range(3)]
    for _ in range(2):
        for up in ups:
            check_gated(bs.gated_matmul(x, w, up), x, w, up, "silu")


def test_wrong_calls_are_wrong_the_second_time_too(w):
    x = torch.randn(2, 64)
    bs.matmul(x, w)
    with pytest.raises(ValueError, match="x_tensor_scale"):
        bs.matmul(x, w, x_tensor_scale=2.0)
    with pytest.raises(TypeError, match="bias must be a Tensor"):
        bs.linear(x, w, [0.0] * 24)
    with pytest.raises(ValueError, match="k=32"):
        bs.matmul(torch.randn(2, 32), w)
    for each in (x, bs.quantize(x, bs.NVFP4)):
        with pytest.raises(TypeError, match=r"out_dtype must be a torch\.dtype"):
            bs.matmul(each, w, out_dtype=[])


def test_another_device_is_another_call(w):
    x, bias = torch.randn(3, 64), torch.randn(24)
    bs.linear(x, w, bias)
    with pytest.raises(ValueError, match="meta"):
        bs.linear(x.to("meta"), w, bias)
    with pytest.raises(ValueError, match="meta"):
        bs.linear(x, w, bias.to("meta"))


def test_no_plan_holds_a_copy_of_weights():
    whole = bs.quantize(torch.randn(2, 32, 64), bs.NVFP4)
    rows = whole[:, :16]
    x = torch.randn(2, 3, 64)
    first = bs.matmul(x, rows)
    assert list(rows.plans.values()) == [None]
    whole.codes.zero_()
    assert torch.equal(bs.matmul(x, rows), torch.zeros_like(first))


def test_copies_and_pickles_start_without_plans(w):
    x = torch.randn(1, 64)
    expected = bs.matmul(x, w)
    for twin in (copy.deepcopy(w), copy.copy(w), pickle.loads(pickle.dumps(w))):
        assert twin.plans == {}
        assert torch.equal(bs.matmul(x, twin), expected)


def test_gradients_pass_by_the_plan(w):
    x = torch.randn(2, 64)
    bs.matmul(x, w)
    x.requires_grad_()
    bs.matmul(x, w).sum().backward()
    torch.testing.assert_close(x.grad, w.dequantize().sum(0).expand(2, 64))


@needs_native
def test_a_module_keeps_its_plan():
    layer = bs.nn.Linear.from_linear(torch.nn.Linear(64, 24), bs.NVFP4)
    x = torch.randn(1, 64)
    with torch.no_grad():
        expected = layer(x)
        plans = layer.weight.plans
        assert plans
        assert torch.equal(layer(x), expected)
        assert layer.weight.plans is plans
        other = bs.nn.Linear.from_linear(torch.nn.Linear(64, 24), bs.NVFP4)
        layer.load_state_dict(other.state_dict())
        assert not torch.equal(layer(x), expected)


def test_a_module_lets_go_of_what_it_held():
    layer = bs.nn.Linear.from_linear(torch.nn.Linear(64, 24), bs.NVFP4)
    canonical = weakref.ref(layer.weight.codes)
    with torch.no_grad():
        layer.prepare()
        gc.collect()
        prepared = weakref.ref(layer.weight_codes)
        assert canonical() is None or canonical() is prepared()
        layer(torch.randn(1, 64))
        layer.to("meta")
    gc.collect()
    assert prepared() is None


@needs_native
@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP8], ids=str)
def test_quantised_x_has_plans_of_its_own(w, x_format):
    bs.matmul(torch.randn(4, 64), w)
    for _ in range(2):
        x = bs.quantize(torch.randn(4, 64), x_format)
        y = bs.matmul(x, w, out_dtype=torch.float32)
        check(y, exact(x), exact(w), torch.float32, torch.float32)
        assert len(w.plans) == 2
    stacked = bs.quantize(torch.randn(2, 2, 64), x_format)
    y = bs.matmul(stacked, w, out_dtype=torch.float32)
    assert y.shape == (2, 2, 24)
    for i in range(2):
        check(y[i], exact(stacked)[i], exact(w), torch.float32, torch.float32)
    with pytest.raises(ValueError, match="quantised already"):
        bs.matmul(stacked, w, x_format="int8")
