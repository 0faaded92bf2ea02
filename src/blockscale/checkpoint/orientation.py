"""Weights that models store otherwise than [n, k], turned into what this library quantises.

Some models keep their 16-bit experts as [e, k, n], so that blocks along the last axis would run
along the wrong one, and files of Qwen3-VL exist in both orientations. The shapes of gate_up_proj
and down_proj together say which it is: n = 2i and k = h of the one, n = h and k = i of the other.
Where one of them is missing it is known from the `model_type` of config.json. GPT-OSS also lays
gate and up rows in turn, in weights and biases, which no shape says.

Quantised experts are [e, n, k] with all gate rows before all up rows, whatever they came from, and
so are biases beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import Tensor

from blockscale.checkpoint.dialects.parts import gate_before_up
from blockscale.checkpoint.stored import Parts, Stored, module_of

_GATE_UP, _DOWN = "*.experts.gate_up_proj", "*.experts.down_proj"
_BIAS = "_bias"
_TRANSPOSED = {"gpt_oss", "llama4", "llama4_text", "openai_privacy_filter"}
_IN_TURN = {"gpt_oss"}


def model_types(config: Mapping[str, Any]) -> set[str]:
    """Of a model, and of the language model within one that sees or hears."""
    configs = (config, config.get("text_config"), config.get("decoder"))
    return {each.get("model_type", "") for each in configs if isinstance(each, Mapping)}


def as_weights(tensors: Mapping[str, Stored], config: Mapping[str, Any]) -> dict[str, Stored]:
    """The tensors of a checkpoint, experts as [e, n, k]; what is quantised already is so."""
    types = model_types(config)
    quantized = {name for name, stored in tensors.items() if stored.format is not None}
    return {
        name: _turned(
            stored,
            _is_transposed(stored, tensors, types),
            bool(types & _IN_TURN) and name.removesuffix(_BIAS) not in quantized,
        )
        for name, stored in tensors.items()
    }


def as_written(
    tensors: Mapping[str, Stored], weights: Mapping[str, Stored], quantized: set[str]
) -> dict[str, Stored]:
    """As weights where they will be quantised, biases with them; the others as the model wants."""
    return {
        name: weights[name] if name.removesuffix(_BIAS) in quantized else stored
        for name, stored in tensors.items()
    }


def _turned(stored: Stored, transposed: bool, in_turn: bool) -> Stored:
    if in_turn and fnmatchcase(stored.name, _GATE_UP + _BIAS):
        return replace(stored, assemble=_bias_gate_before_up)
    in_turn = in_turn and fnmatchcase(stored.name, _GATE_UP)
    if not _is_experts(stored) or not (transposed or in_turn):
        return stored
    e, *matrix = stored.shape
    shape = (e, *(reversed(matrix) if transposed else matrix))
    return replace(stored, shape=shape, assemble=partial(_turn, transposed, in_turn))


def _is_experts(stored: Stored) -> bool:
    """Fused ones, and plain."""
    if stored.format is not None or len(stored.shape) != 3:
        return False
    return any(fnmatchcase(stored.name, each) for each in (_GATE_UP, _DOWN))


def _is_transposed(stored: Stored, tensors: Mapping[str, Stored], types: set[str]) -> bool:
    """Whether experts are stored as [e, k, n]: by both their shapes, or else by their model."""
    if not _is_experts(stored):
        return False
    layer = module_of(stored.name)
    gate_up, down = (tensors.get(f"{layer}.{each}") for each in ("gate_up_proj", "down_proj"))
    if gate_up and down and _is_experts(gate_up) and _is_experts(down):
        (_, *rows), (_, n, k) = gate_up.shape, down.shape
        if rows in ([2 * k, n], [k, 2 * n]):
            return rows == [k, 2 * n]
    return bool(types & _TRANSPOSED)


def _turn(transposed: bool, in_turn: bool, parts: Parts) -> Tensor:
    weight = parts[""].mT if transposed else parts[""]
    return (gate_before_up(weight, -2) if in_turn else weight).contiguous()


def _bias_gate_before_up(parts: Parts) -> Tensor:
    return gate_before_up(parts[""], -1)
