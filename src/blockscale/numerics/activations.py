"""The activations of a gated product, act(g) * u, and their derivatives.

`swiglu_oai` is GPT-OSS's: the gate is clamped from above, the up branch on both sides, and one is
added to the up branch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import torch
from torch import Tensor

NAMES = ("silu", "gelu", "gelu_tanh", "swiglu_oai")


@dataclass(frozen=True)
class Activation:
    """act(g) * u by name. `alpha` and `limit` belong to swiglu_oai alone."""

    name: str
    alpha: float = 0.0
    limit: float = math.inf
    # What `parse_activation` reads. Written once: where shapes are dynamic, compilers make symbols
    # of numbers that they find in an object, and cannot write these.
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        numbers = "(" + str(self.alpha) + "," + str(self.limit) + ")"
        text = self.name + numbers if self.name == "swiglu_oai" else self.name
        object.__setattr__(self, "text", text)

    def __str__(self) -> str:
        return self.text

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.name == "swiglu_oai":
            gate = gate.clamp(max=self.limit)
            return gate * torch.sigmoid(self.alpha * gate) * (_clamp(up, self.limit) + 1)
        return _ACT[self.name][0](gate) * up

    def gradients(self, grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the two branches, given the gradient of their product."""
        if self.name == "swiglu_oai":
            inside, kept = gate <= self.limit, up.abs() <= self.limit
            gate = gate.clamp(max=self.limit)
            sigmoid = torch.sigmoid(self.alpha * gate)
            slope = sigmoid * (1 + self.alpha * gate * (1 - sigmoid))
            grad_gate = grad * (_clamp(up, self.limit) + 1) * slope * inside
            return grad_gate, grad * gate * sigmoid * kept
        act, slope_of = _ACT[self.name]
        return grad * up * slope_of(gate), grad * act(gate)


def _clamp(up: Tensor, limit: float) -> Tensor:
    return up.clamp(-limit, limit)


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _silu_slope(x: Tensor) -> Tensor:
    sigmoid = torch.sigmoid(x)
    return sigmoid * (1 + x * (1 - sigmoid))


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))  # 1 + erf would cancel in the lower tail


def _gelu(x: Tensor) -> Tensor:
    return x * _normal_cdf(x)


def _gelu_slope(x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return _normal_cdf(x) + x * density


def _tanh_cdf(x: Tensor) -> Tensor:
    """(1 + tanh(z)) / 2 with z = sqrt(2 / pi) (x + 0.044715 x^3), as a sigmoid: no cancellation."""
    return torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))


def _gelu_tanh(x: Tensor) -> Tensor:
    return x * _tanh_cdf(x)


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    cdf = _tanh_cdf(x)
    inner = math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return cdf + x * cdf * (1 - cdf) * inner


_ACT = {
    "silu": (_silu, _silu_slope),
    "gelu": (_gelu, _gelu_slope),
    "gelu_tanh": (_gelu_tanh, _gelu_tanh_slope),
}


def swiglu_oai(alpha: float = 1.702, limit: float = 7.0) -> Activation:
    """GPT-OSS's: c * sigmoid(alpha * c) * (clamp(u, -limit, limit) + 1) with c = min(g, limit)."""
    if not (math.isfinite(alpha) and limit > 0):
        raise ValueError(
            f"swiglu_oai: needs a finite alpha and a positive limit, got {alpha} and {limit}"
        )
    return Activation("swiglu_oai", float(alpha), float(limit))


def parse_activation(activation: str | Activation) -> Activation:
    """By name ("silu", "gelu", "gelu_tanh", "swiglu_oai") or from `str(activation)`."""
    if isinstance(activation, Activation):
        return activation
    if activation in _ACT:
        return Activation(activation)
    if activation == "swiglu_oai":
        return swiglu_oai()
    if match := re.fullmatch(r"swiglu_oai\(([-+.e\d]+),([-+.e\d]+|inf)\)", activation):
        return swiglu_oai(float(match[1]), float(match[2]))
    raise ValueError(f"unknown activation {activation!r}: use one of {', '.join(NAMES)}")
