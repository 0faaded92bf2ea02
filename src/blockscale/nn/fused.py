"""Fused experts of other libraries, read into this one's convention.

transformers keeps the experts of a layer in two 3-D parameters, `gate_up_proj` and `down_proj`, and
its expert modules say how: `is_transposed` ([e, k, n] instead of [e, n, k]), `is_concatenated` (all
gates before all ups, or gates and ups in turn), `has_bias`. What they do between the two products
is told by `act_fn`, or by the class where it has a gate of its own. They are known by these
attributes, so nothing is imported. Llama 4's say nothing, and are called in their own way: they are
known by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from blockscale.numerics import Activation, swiglu_oai

_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
}

# Classes with GPT-OSS's clamped gate, and where they keep its alpha and limit.
_CLAMPED_GATES = {
    "GptOssExperts": ("alpha", "limit"),
    "OpenAIPrivacyFilterExperts": ("alpha", "limit"),
    "MiniMaxM3VLExperts": ("swiglu_alpha", "swiglu_limit"),
}

# Classes that say nothing of their weights, which are [e, k, n] with all gates before all ups, and
# that take rows which are weighted and stacked by expert already.
_STACKED = ("Llama4TextExperts",)


class FusedExperts(NamedTuple):
    """Views of a module's parameters, as `Experts` wants them."""

    gate: Tensor  # [e, i, h]
    up: Tensor  # [e, i, h]
    down: Tensor  # [e, h, i]
    activation: str | Activation
    gate_bias: Tensor | None = None  # [e, i]
    up_bias: Tensor | None = None  # [e, i]
    down_bias: Tensor | None = None  # [e, h]
    stacked: bool = False  # called with x [e * tokens, h] alone, see `Experts`


def is_fused(module: nn.Module) -> bool:
    down = module._parameters.get("down_proj")
    return down is not None and down.dim() == 3


def is_transposed(module: nn.Module) -> bool:
    """Whether its weights are [e, k, n]."""
    return type(module).__name__ in _STACKED or bool(getattr(module, "is_transposed", False))


def is_concatenated(module: nn.Module) -> bool:
    """Whether all gates come before all ups."""
    return type(module).__name__ in _STACKED or bool(getattr(module, "is_concatenated", True))


def read_fused(module: nn.Module) -> FusedExperts | str:
    """The weights of fused experts, or why they cannot be read."""
    name = type(module).__name__
    if not isinstance(getattr(module, "gate_up_proj", None), Tensor):
        return f"{name} has no gate_up_proj"
    stacked = name in _STACKED
    if not (stacked or (hasattr(module, "is_transposed") and hasattr(module, "is_concatenated"))):
        return f"{name} does not say how its weights are stored"
    if getattr(module, "has_post_expert_norm", False):
        return f"{name} normalises the result of each expert"
    activation = _activation(module)
    if activation is None:
        return f"the gate of {name} is not known here"
    stored: Any = module
    gate_up, down = stored.gate_up_proj, stored.down_proj
    concatenated = is_concatenated(module)
    if is_transposed(module):
        gate_up, down = gate_up.mT, down.mT
    gate, up = _halves(gate_up, concatenated)
    if not getattr(module, "has_bias", False):
        return FusedExperts(gate, up, down, activation, stacked=stacked)
    gate_bias, up_bias = _halves(stored.gate_up_proj_bias, concatenated)
    return FusedExperts(gate, up, down, activation, gate_bias, up_bias, stored.down_proj_bias)


def _halves(gate_up: Tensor, concatenated: bool) -> tuple[Tensor, Tensor]:
    """Gates and ups, along the rows of weights [e, 2i, h] or along biases [e, 2i]."""
    if not concatenated:
        return gate_up[:, ::2], gate_up[:, 1::2]
    gate, up = gate_up.chunk(2, dim=1)
    return gate, up


def _activation(module: nn.Module) -> str | Activation | None:
    names = _CLAMPED_GATES.get(type(module).__name__)
    if names is not None:
        alpha, limit = (getattr(module, name) for name in names)
        return swiglu_oai(alpha, limit)
    gate = getattr(type(module), "_apply_gate", None)
    if gate is not None and gate.__name__ != "_default_apply_gate":
        return None
    return _ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)
