"""Projections that engines fuse into one matrix, and which therefore need one tensor scale.

vLLM loads q, k and v as one weight, and gate and up as another, and takes the largest of their
tensor scales for all of it: scales that differ would silently change the others' values. Which
projections it fuses, each of its models says in `packed_modules_mapping` or in what it stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format
from blockscale.nn.adapters import adapted_name
from blockscale.nn.plan import Weight
from blockscale.tensor import QTensor, quantize

# First of each: the one that comes first in a checkpoint's layer, and names the group.
_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),  # Molmo 2, Pixtral
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("c_fc_0", "c_fc_1"),  # Exaone
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("wq_a", "wkv"),  # DeepSeek-V4
    ("wq_du", "wk_dv", "wv_dv", "wr_du"),  # Inkling
    ("in_proj_qkv", "in_proj_z"),  # Qwen3.5
    ("in_proj_b", "in_proj_a"),
)
# Fused in these models and apart in others, by the same names. Without need a common tensor scale
# costs little, so all get one; scales that differ may be right, so they are not refused.
_FUSED_IN_SOME = (
    ("q_proj", "g_proj", "b_proj", "f_a_proj"),  # OLMo-hybrid, Bailing 3, Kimi K3
    ("q_proj", "index_q_proj", "index_k_proj"),  # MiniMax M3
    ("q", "k", "v"),  # vision of Qwen and GLM
    ("fc1", "fc3"),  # AIMv2, dots.ocr
    ("gate_proj", "dense_h_to_4h"),  # vision of GLM-4V
)


def _firsts(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    return {part: parts[0] for parts in groups for part in parts}


_MUST_SHARE = _firsts(_FUSED)
_SHARE = _firsts((*_FUSED, *_FUSED_IN_SOME))
_Group = tuple[str, Format, int]


def _group_of(
    name: str, format: Format, shape: tuple[int, ...], firsts: Mapping[str, str]
) -> _Group:
    """Equal for tensors that are fused: that of "a.k_proj.weight" names "a.q_proj.weight".

    Only formats whose tensor scale follows the amax of the data need it, and rows of different k
    make no matrix: q and k of an attention to something else.
    """
    module, _, leaf = name.rpartition(".")
    parent, _, part = adapted_name(module).rpartition(".")
    fuses = format.tensor_scale == "amax" and len(shape) == 2
    label = f"{parent}.{firsts.get(part, part)}.{leaf}" if fuses else name
    return label, format, shape[-1]


def fused_groups(
    formats: Mapping[str, Format], shapes: Mapping[str, tuple[int, ...]]
) -> list[list[str]]:
    """The names, grouped where they share a tensor scale; most groups have one member."""
    groups: dict[_Group, list[str]] = {}
    for name, format in formats.items():
        groups.setdefault(_group_of(name, format, shapes[name], _SHARE), []).append(name)
    return list(groups.values())


def shared_tensor_scales(chosen: Sequence[tuple[Weight, Format]]) -> dict[str, Tensor]:
    """By the names of weights, for those that share one: fused matrices, and gate and up."""
    weights = {f"{weight.name}.weight": weight for weight, _ in chosen}
    formats = {f"{weight.name}.weight": format for weight, format in chosen}
    found: dict[str, Tensor] = {}
    for group in fused_groups(formats, {name: each.shape for name, each in weights.items()}):
        format = formats[group[0]]
        parts = [part for name in group for part in weights[name].parts]
        if format.tensor_scale == "amax" and len(parts) > 1:
            scale = shared_tensor_scale(parts, format)
            found |= {weights[name].name: scale for name in group}
    return found


def shared_tensor_scale(parts: Sequence[Tensor], format: Format) -> Tensor:
    """What the rows of all parts would have as one matrix: a tensor scale grows with the amax."""
    scales = [ops.derive_tensor_scale(p.detach(), format, per_row=False).cpu() for p in parts]
    return torch.stack(scales).amax(0)


def quantize_sharing(
    parts: Sequence[Tensor],
    format: Format,
    scale: str,
    over_ranks: Callable[[Tensor], Tensor] | None = None,
) -> list[QTensor]:
    """The parts with one tensor scale, where the format has one that follows the data.

    over_ranks   for parts of matrices whose other parts other ranks have: the largest of all ranks'
                 tensor scales, with which each rank makes the bytes that it would cut of the whole
    """
    scales: list[Tensor | None] = [None] * len(parts)
    if format.tensor_scale == "amax" and len(parts) > 1:
        scales = [shared_tensor_scale(parts, format)] * len(parts)
    elif over_ranks is not None and format.has_tensor_scale:
        scales = [shared_tensor_scale([part], format) for part in parts]
    if over_ranks is not None:
        scales = [None if each is None else over_ranks(each) for each in scales]
    pairs = zip(parts, scales, strict=True)
    return [quantize(p.contiguous(), format, scale=scale, tensor_scale=s) for p, s in pairs]


def check_shared(tensors: Iterable[tuple[str, QTensor]]) -> None:
    """Raise where weights that are always fused have different tensor scales."""
    first: dict[_Group, tuple[str, float]] = {}
    for name, value in tensors:
        if value.format.tensor_scale != "amax" or value.tensor_scale is None:
            continue
        group = _group_of(name, value.format, value.shape, _MUST_SHARE)
        scale = value.tensor_scale.item()
        other, wanted = first.setdefault(group, (name, scale))
        if scale != wanted:
            raise ValueError(
                f"{name} has tensor_scale {scale:.9g} but {other} has {wanted:.9g}, and engines "
                "fuse the two: quantise both with one tensor_scale=, or write the blockscale "
                "dialect, which keeps them apart"
            )
