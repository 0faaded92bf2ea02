"""Projections that engines fuse into one matrix, and which therefore need one tensor scale.

vLLM loads q, k and v as one weight, and gate and up as another, and takes the largest of their
tensor scales for all of it: scales that differ would silently change the others' values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format
from blockscale.nn.plan import Weight
from blockscale.tensor import QTensor, quantize

# First of each: the one that comes first in a checkpoint's layer, and names the group.
_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
_FIRST = {part: parts[0] for parts in _FUSED for part in parts}


def group_of(name: str) -> str:
    """The same string for tensors that are fused: "a.k_proj.weight" -> "a.q_proj.weight"."""
    module, _, leaf = name.rpartition(".")
    parent, _, part = module.rpartition(".")
    return f"{parent}.{_FIRST.get(part, part)}.{leaf}"


def fused_groups(
    formats: Mapping[str, Format], shapes: Mapping[str, tuple[int, ...]]
) -> list[list[str]]:
    """The names, grouped where they share a tensor scale; most groups have one member.

    Only formats whose tensor scale follows the amax of the data need it.
    """
    groups: dict[tuple[str, Format, int], list[str]] = {}
    for name, format in formats.items():
        fuses = format.tensor_scale == "amax" and len(shapes[name]) == 2
        label = group_of(name) if fuses else name
        groups.setdefault((label, format, shapes[name][-1]), []).append(name)
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


def check_shared(tensor_scales: Iterable[tuple[str, float]]) -> None:
    """Raise where members of one group have different tensor scales."""
    first: dict[str, tuple[str, float]] = {}
    for name, scale in tensor_scales:
        other, wanted = first.setdefault(group_of(name), (name, scale))
        if scale != wanted:
            raise ValueError(
                f"{name} has tensor_scale {scale:.9g} but {other} has {wanted:.9g}, and engines "
                "fuse the two: quantise both with one tensor_scale=, or write the blockscale "
                "dialect, which keeps them apart"
            )
