"""Weights that models store otherwise than [n, k], turned into what this library quantises.

GPT-OSS and Llama 4 keep their 16-bit experts as [e, k, n], so that blocks along the last axis would
run along the wrong one. GPT-OSS also lays gate and up rows in turn, in weights and biases. Nothing
in the files says so: it is known from the `model_type` of config.json.

Quantised experts are [e, n, k] with all gate rows before all up rows, whatever they came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import Tensor

from blockscale.checkpoint.dialects.parts import gate_before_up
from blockscale.checkpoint.stored import Parts, Stored

_GATE_UP, _DOWN = "*.experts.gate_up_proj", "*.experts.down_proj"
_BIAS = "_bias"


@dataclass(frozen=True)
class _Orientation:
    """Of experts that are stored as [e, k, n]."""

    interleaved: bool  # gate and up in turn


_EXPERTS = {
    "gpt_oss": _Orientation(interleaved=True),
    "llama4": _Orientation(interleaved=False),
    "llama4_text": _Orientation(interleaved=False),
}


def as_weights(tensors: Mapping[str, Stored], config: Mapping[str, Any]) -> dict[str, Stored]:
    """The tensors of a checkpoint, experts as [e, n, k]; what is quantised already is so."""
    found = _EXPERTS.get(config.get("model_type", ""))
    if found is None:
        return dict(tensors)
    return {name: _turned(stored, found) for name, stored in tensors.items()}


def as_written(
    tensors: Mapping[str, Stored], weights: Mapping[str, Stored], quantized: set[str]
) -> dict[str, Stored]:
    """As weights where they will be quantised, biases with them; the others as the model wants."""
    return {
        name: weights[name] if name.removesuffix(_BIAS) in quantized else stored
        for name, stored in tensors.items()
    }


def _turned(stored: Stored, orientation: _Orientation) -> Stored:
    if stored.format is not None:
        return stored
    is_gate_up = fnmatchcase(stored.name, _GATE_UP)
    if len(stored.shape) == 3 and (is_gate_up or fnmatchcase(stored.name, _DOWN)):
        e, k, n = stored.shape
        in_turn = orientation.interleaved and is_gate_up
        return replace(stored, shape=(e, n, k), assemble=partial(_turn, in_turn))
    if orientation.interleaved and fnmatchcase(stored.name, _GATE_UP + _BIAS):
        return replace(stored, assemble=_bias_gate_before_up)
    return stored


def _turn(in_turn: bool, parts: Parts) -> Tensor:
    weight = parts[""].mT
    return (gate_before_up(weight, -2) if in_turn else weight).contiguous()


def _bias_gate_before_up(parts: Parts) -> Tensor:
    return gate_before_up(parts[""], -1)
