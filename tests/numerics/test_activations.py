"""The gates: what torch computes for the same names, and derivatives that autograd confirms."""

import math

import pytest
import torch
import torch.nn.functional as F

from blockscale.numerics import parse_activation, swiglu_oai


def gpt_oss(gate, up):
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


TORCH = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "swiglu_oai": gpt_oss,
}


def branches():
    """float64 and beyond the clamps of swiglu_oai; none on one of them, where no slope is."""
    gate, up = torch.meshgrid(
        torch.linspace(-9.1, 9.1, 40), torch.linspace(-8.3, 8.3, 30), indexing="ij"
    )
    return gate.double().flatten(), up.double().flatten()


def bound(gate, up):
    """At most 64 roundings, of terms that are no larger than this."""
    return 64 * torch.finfo(torch.float64).eps * (1 + up.abs()) * (1 + gate.abs()) ** 3


@pytest.mark.parametrize("name", TORCH)
def test_values_are_those_of_torch(name):
    gate, up = branches()
    error = (parse_activation(name)(gate, up) - TORCH[name](gate, up)).abs()
    assert (error <= bound(gate, up)).all()


@pytest.mark.parametrize("name", TORCH)
def test_gradients_are_those_of_autograd(name):
    gate, up = (each.requires_grad_() for each in branches())
    grad = torch.randn_like(gate)
    expected = torch.autograd.grad(TORCH[name](gate, up), (gate, up), grad)
    with torch.no_grad():
        found = parse_activation(name).gradients(grad, gate, up)
    for ours, theirs in zip(found, expected, strict=True):
        assert ((ours - theirs).abs() <= grad.abs() * bound(gate, up)).all()


@pytest.mark.parametrize("activation", [*map(parse_activation, TORCH), swiglu_oai(1.5, math.inf)])
def test_an_activation_is_read_back_from_its_text(activation):
    assert parse_activation(str(activation)) == activation == parse_activation(activation)


def test_what_is_no_activation():
    with pytest.raises(ValueError, match="unknown activation 'relu': use one of silu, gelu, "):
        parse_activation("relu")
    with pytest.raises(ValueError, match="a finite alpha and a positive limit, got nan and 7"):
        swiglu_oai(math.nan)
    with pytest.raises(ValueError, match=r"got 1\.702 and 0"):
        swiglu_oai(limit=0)
