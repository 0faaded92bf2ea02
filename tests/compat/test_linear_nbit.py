"""`LinearNbit` holds a prepared weight, as `nn.Linear` does."""

import copy

import pytest
import torch

import blockscale as bs
from blockscale import compat, ops
from blockscale.runtime import device_of
from blockscale.tensor import QTensor


@pytest.fixture
def layer():
    return torch.nn.Linear(64, 16)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_it_runs_the_kernel_of_a_prepared_weight(layer, k):
    quantized = compat.LinearNbit.from_linear(layer, k=k)
    twin = bs.nn.Linear.from_linear(layer, bs.format(f"kbit{k}"))
    x = torch.randn(1, 64)
    assert torch.equal(quantized(x), twin(x))
    weight = quantized.weight
    assert weight.layout == ops.prepared_layout(weight.format, device_of(weight.device))
    ours, theirs = bs.explain(x, weight), bs.explain(x, twin.weight)
    assert (ours.kernel, ours.choice.config) == (theirs.kernel, theirs.choice.config)


def test_the_second_call_makes_no_qtensor(layer, monkeypatch):
    quantized = compat.LinearNbit.from_linear(layer)
    x = torch.randn(1, 64)
    expected = quantized(x)
    made = []
    monkeypatch.setattr(QTensor, "__post_init__", made.append)
    assert torch.equal(quantized(x), expected)
    assert not made


def test_the_bias_is_the_layers_own(layer):
    assert compat.LinearNbit.from_linear(layer).bias is layer.bias
    assert compat.LinearNbit(layer.weight).bias is None


def test_state_dicts_are_canonical(layer):
    quantized = compat.LinearNbit.from_linear(layer)
    x = torch.randn(3, 64)
    y = quantized(x)
    state = quantized.state_dict()
    names = ("codes", "scale", "tensor_scale", "codebook")
    assert set(state) == {"bias", "weight", *(f"weight_{name}" for name in names)}
    assert torch.equal(state["weight_codes"], bs.quantize(layer.weight, "kbit4", scale="mse").codes)
    other = compat.LinearNbit.from_linear(torch.nn.Linear(64, 16))
    other.load_state_dict(state)
    assert torch.equal(other(x), y)


@pytest.mark.parametrize("method", ["mid_quantiles", "bin_means"])
def test_it_takes_a_codebook(layer, method):
    table = compat.create_normal_float_codebook(3, method=method)
    quantized = compat.LinearNbit.from_linear(layer, k=3, codebook=table)
    own = bs.KBIT3.replace(element=bs.formats.normal_float(3, method))
    assert quantized.weight == bs.quantize(layer.weight, own, scale="mse")


def test_a_cast_leaves_the_weight_as_it_is():
    quantized = compat.LinearNbit(torch.randn(16, 64), k=3)
    before = quantized.weight
    assert quantized.to(torch.bfloat16).weight == before
    assert quantized(torch.randn(2, 64).bfloat16()).dtype == torch.bfloat16


def test_it_copies_compiles_and_trains_its_bias(layer):
    quantized = compat.LinearNbit.from_linear(layer)
    x = torch.randn(2, 64, requires_grad=True)
    y = quantized(x)
    assert torch.equal(copy.deepcopy(quantized)(x), y)
    compiled = torch.compile(quantized, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), y)
    y.sum().backward()
    assert torch.equal(quantized.bias.grad, torch.full((16,), 2.0))
    assert x.grad is not None


def test_what_it_is_made_of_is_checked(layer):
    with pytest.raises(ValueError, match=r"weight must be \[N, K\], got \[64\]"):
        compat.LinearNbit(torch.randn(64))
    with pytest.raises(ValueError, match=r"bias must be \[16\], got \[4\]"):
        compat.LinearNbit(layer.weight, torch.zeros(4))
    with pytest.raises(ValueError, match="k must be 2, 3, 4 or 5, got 6"):
        compat.LinearNbit(layer.weight, k=6)
    assert "in_features=64, out_features=16, bias=True, format=kbit4" in repr(
        compat.LinearNbit.from_linear(layer)
    )
