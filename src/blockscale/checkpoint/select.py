"""Which tensors of a checkpoint are quantised, to what, and why the others are not.

By default: the matrices of linear layers, and fused experts [e, n, k]. Embeddings, the head,
routers and norms stay as they are; they are small or sensitive, and engines expect them plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from blockscale.checkpoint.dialects import WritableDialect
from blockscale.checkpoint.orientation import model_types
from blockscale.checkpoint.stored import Stored, module_of
from blockscale.formats import NVFP4, Format
from blockscale.layouts import canonical
from blockscale.nn.selection import matches

KEEP = "keep"
_ASKED = "asked for"
_MOST_NAMES = 4  # of the tensors kept for one reason
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NOT_LINEAR = (
    "*embed*",
    "*wte.weight",
    "*wpe.weight",
    "*_emb.weight",  # positions of Granite Speech, segments of Kosmos-2.5
    "*_bos_eos_token.weight",  # Qwen2.5-Omni
    "transformer.w.weight",  # CTRL
    "shared.weight",
    "*.shared.weight",
    "*relative_attention_bias.weight",
    "*lm_head*",
    "*.score.weight",
    "*classifier*",
    "*.gate.weight",
    "*.gate.*",  # layers of a router: HunYuan, Zaya
    "*.shared_expert_gate.weight",
    "*.router.*",
    "*_router.weight",
    "*norm*",
)
_EXPERTS = (
    "*.experts.gate_up_proj",
    "*.experts.gate_proj",
    "*.experts.up_proj",
    "*.experts.down_proj",
    "*.block_sparse_moe.input_linear.weight",  # GraniteMoE: gate and up
    "*.block_sparse_moe.output_linear.weight",
)
# What models with Conv1D of transformers store as [k, n]; blocks would run along the wrong axis.
_CONV1D_MODELS = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"}
_CONV1D = ("*.c_attn.weight", "*.q_attn.weight", "*.c_proj.weight", "*.c_fc.weight")


@dataclass(frozen=True)
class Rule:
    """`--layers PATTERN=FORMAT`: a shell pattern for names, and a format, or None to keep."""

    pattern: str
    format: Format | None

    def matches(self, name: str) -> bool:
        return matches(self.pattern, name, module_of(name))


@dataclass(frozen=True)
class Choice:
    """A format, or None to leave the tensor plain, and then the reason."""

    format: Format | None = None
    reason: str = ""
    dropped: bool = False

    @property
    def as_it_is(self) -> bool:
        """Asked for by name: not even looked at."""
        return self.reason == _ASKED


def choose(
    tensors: Mapping[str, Stored],
    default: Format,
    rules: Sequence[Rule],
    dialect: WritableDialect,
    config: Mapping[str, Any],
) -> dict[str, Choice]:
    """A choice for every tensor. The first rule that matches a name decides."""
    _check_rules(tensors, rules)
    for format in {default, *(rule.format for rule in rules if rule.format)}:
        weights = [s for s in tensors.values() if s.format is not None or _is_linear(s)]
        refusals = [dialect.refuses(s.name, format, s.shape) for s in weights]
        if refusals and all(refusals):
            raise ValueError(f"{refusals[0]}; the blockscale dialect holds every format and shape")
    transposed = _CONV1D if model_types(config) & _CONV1D_MODELS else ()
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


def kept_by_reason(choices: Mapping[str, Choice]) -> list[str]:
    """As in "kept, its numbers are int8: a.weight, b.weight", a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, choice in choices.items():
        if choice.reason:
            label = "dropped" if choice.dropped else "kept"
            reasons.setdefault(f"{label}, {choice.reason}", []).append(name)
    lines = []
    for reason, names in reasons.items():
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        lines.append(f"{reason}: {', '.join(names[:_MOST_NAMES])}{more}")
    return lines


def _check_rules(tensors: Iterable[str], rules: Sequence[Rule]) -> None:
    """Each rule decides about some tensor: one that never does was meant otherwise."""
    waiting = set(tensors)
    for rule in rules:
        matched = {name for name in tensors if rule.matches(name)}
        if not matched:
            raise ValueError(f"--layers {rule.pattern}: no tensor has such a name")
        if not matched & waiting:
            raise ValueError(
                f"--layers {rule.pattern}: patterns before it match all of its tensors, and the "
                "first that matches counts: name it earlier"
            )
        waiting -= matched


def _choose_one(
    stored: Stored,
    default: Format,
    rules: Sequence[Rule],
    dialect: WritableDialect,
    transposed: Sequence[str],
) -> Choice:
    rule = next((rule for rule in rules if rule.matches(stored.name)), None)
    if stored.format is not None:
        return _requantized(stored, rule.format if rule else default, dialect)
    if rule is not None and rule.format is None:
        return Choice(reason=_ASKED)
    reason = _why_no_weights(stored) or ("" if rule else _why_not_linear(stored))
    if not reason and any(fnmatchcase(stored.name, pattern) for pattern in transposed):
        reason = "this model stores it as [k, n]"
    wanted = rule.format if rule and rule.format else default
    reason = reason or _obstacle(stored, wanted, dialect)
    return Choice(reason=reason) if reason else Choice(wanted)


def _why_no_weights(stored: Stored) -> str:
    """Why a tensor cannot be quantised, whatever it is for."""
    if len(stored.shape) < 2:
        return "no matrix"
    if len(stored.shape) > 3:
        return f"{len(stored.shape)} dimensions, where matrices have 2 and experts 3"
    if stored.dtype not in _FLOATS:
        return f"its numbers are {str(stored.dtype).removeprefix('torch.')}"
    return ""


def _is_linear(stored: Stored) -> bool:
    return not _why_no_weights(stored) and not _why_not_linear(stored)


def _why_not_linear(stored: Stored) -> str:
    """Why nobody would expect a tensor to be quantised; --layers still can."""
    default = next((p for p in _NOT_LINEAR if fnmatchcase(stored.name, p)), None)
    if default is not None:
        return f"by default: {default}"
    if len(stored.shape) == 3 and not any(fnmatchcase(stored.name, p) for p in _EXPERTS):
        return "3 dimensions and not called like fused experts"
    if len(stored.shape) == 2 and not stored.name.endswith(".weight"):
        return "a matrix that is not called *.weight"
    return ""


def _requantized(stored: Stored, wanted: Format | None, dialect: WritableDialect) -> Choice:
    """A tensor that is quantised already cannot become plain: it takes a format that fits."""
    format = wanted or stored.format
    reason = _obstacle(stored, format, dialect) if format else ""
    if reason:
        raise ValueError(
            f"{stored.name} is {stored.format} {list(stored.shape)} and cannot become {format}: "
            f"{reason}; the blockscale dialect holds every format and shape"
        )
    return Choice(format, "" if wanted else _ASKED)


def _obstacle(stored: Stored, format: Format, dialect: WritableDialect) -> str:
    try:
        canonical(format).check(format, stored.shape)
    except ValueError:
        return f"k = {stored.shape[-1]} is not a multiple of the block of {format}"
    return dialect.refuses(stored.name, format, stored.shape) or ""
