"""Which tensors of a checkpoint are quantised, to what, and why the others are not.

By default: the matrices of linear layers, and fused experts [e, n, k]. Embeddings, the head,
routers and norms stay as they are; they are small or sensitive, and engines expect them plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from blockscale.checkpoint.dialects import WritableDialect
from blockscale.checkpoint.stored import Stored, module_of
from blockscale.formats import NVFP4, Format
from blockscale.layouts import canonical

KEEP = "keep"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NOT_LINEAR = (
    "*embed*",
    "*wte.weight",
    "*wpe.weight",
    "shared.weight",
    "*lm_head*",
    "*.score.weight",
    "*classifier*",
    "*.gate.weight",
    "*.shared_expert_gate.weight",
    "*.router.*",
    "*norm*",
)
_EXPERTS = (
    "*.experts.gate_up_proj",
    "*.experts.gate_proj",
    "*.experts.up_proj",
    "*.experts.down_proj",
)
# Models that store these as [k, n]; blocks would run along the wrong axis.
_TRANSPOSED = {
    "gpt2": ("*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight"),
    "gpt_oss": _EXPERTS,
    "llama4": _EXPERTS,
    "llama4_text": _EXPERTS,
}


@dataclass(frozen=True)
class Rule:
    """`--layers PATTERN=FORMAT`: a shell pattern for names, and a format, or None to keep."""

    pattern: str
    format: Format | None

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.pattern) or fnmatchcase(module_of(name), self.pattern)


@dataclass(frozen=True)
class Choice:
    """A format, or None to leave the tensor plain; `reason` is given where that may surprise."""

    format: Format | None = None
    reason: str = ""
    dropped: bool = False


def choose(
    tensors: Mapping[str, Stored],
    default: Format,
    rules: Sequence[Rule],
    dialect: WritableDialect,
    config: Mapping[str, Any],
) -> dict[str, Choice]:
    """A choice for every tensor. The last rule that matches a name decides."""
    for rule in rules:
        if not any(rule.matches(name) for name in tensors):
            raise ValueError(f"--layers {rule.pattern}: no tensor has such a name")
    for format in {default, *(rule.format for rule in rules if rule.format)}:
        refusal = dialect.refuses("any.weight", format, (1, format.block))
        if refusal is not None:
            raise ValueError(f"{refusal}; the blockscale dialect holds every format")
    transposed = _TRANSPOSED.get(config.get("model_type", ""), ())
    choices = {
        name: _choose_one(stored, default, rules, dialect, transposed)
        for name, stored in tensors.items()
    }
    for name in tensors:
        module, _, role = name.rpartition(".")
        weight = choices.get(f"{module}.weight")
        if role == "input_scale" and (weight is None or weight.format != NVFP4):
            choices[name] = Choice(reason="only nvfp4 weights have scaled inputs", dropped=True)
    return choices


def _choose_one(
    stored: Stored,
    default: Format,
    rules: Sequence[Rule],
    dialect: WritableDialect,
    transposed: Sequence[str],
) -> Choice:
    rule = next((rule for rule in reversed(rules) if rule.matches(stored.name)), None)
    if stored.format is not None:
        return _requantized(stored, rule.format if rule else default, dialect)
    asked = rule is not None and len(stored.shape) in (2, 3) and stored.dtype in _FLOATS
    if not asked and not _is_linear(stored):
        return Choice()
    wanted = rule.format if rule else default
    if wanted is None:
        return Choice(reason="asked for")
    if any(fnmatchcase(stored.name, pattern) for pattern in transposed):
        return Choice(reason="this model stores it as [k, n]")
    reason = _obstacle(stored, wanted, dialect)
    return Choice(reason=reason) if reason else Choice(wanted)


def _is_linear(stored: Stored) -> bool:
    if stored.dtype not in _FLOATS or any(fnmatchcase(stored.name, p) for p in _NOT_LINEAR):
        return False
    if len(stored.shape) == 3:
        return any(fnmatchcase(stored.name, pattern) for pattern in _EXPERTS)
    return len(stored.shape) == 2 and stored.name.endswith(".weight")


def _requantized(stored: Stored, wanted: Format | None, dialect: WritableDialect) -> Choice:
    """A tensor that is quantised already cannot become plain: it takes a format that fits."""
    format = wanted or stored.format
    reason = _obstacle(stored, format, dialect) if format else ""
    if reason:
        raise ValueError(
            f"{stored.name} is {stored.format} {list(stored.shape)} and cannot become {format}: "
            f"{reason}; the blockscale dialect holds every format and shape"
        )
    return Choice(format)


def _obstacle(stored: Stored, format: Format, dialect: WritableDialect) -> str:
    try:
        canonical(format).check(format, stored.shape)
    except ValueError:
        return f"k = {stored.shape[-1]} is not a multiple of the block of {format}"
    return dialect.refuses(stored.name, format, stored.shape) or ""
