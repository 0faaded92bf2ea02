"""Quantised operands as they cross `torch.library`: plain tensors, one string, a shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.kernels import Parts
from blockscale.problem import Kind, dtype_name, parse_kind


class Operand(NamedTuple):
    """tensors are [x] where kind is ""; else codes, scale, then what the format has of tensor_scale
    and codebook."""

    tensors: Sequence[Tensor]
    kind: str
    shape: Sequence[int]

    @property
    def is_plain(self) -> bool:
        return not self.kind

    @property
    def parsed(self) -> Kind:
        return parse_kind(self.kind)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def label(self) -> str:
        """How a Problem names this operand."""
        return dtype_name(self.tensors[0].dtype) if self.is_plain else self.kind

    def parts(self) -> Parts:
        format = self.parsed.format
        return Parts(
            self.tensors[0],
            self.tensors[1],
            self.tensors[2] if format.has_tensor_scale else None,
            self.tensors[-1] if format.is_codebook else None,
        )


def plain(x: Tensor) -> Operand:
    return Operand([x], "", list(x.shape))


def as_groups(operand: Operand) -> Parts:
    """Parts of a weight [n, k] or [groups, n, k], always with the group dimension."""
    parts = operand.parts()
    if len(operand.shape) == 3:
        return parts
    scale = None if parts.tensor_scale is None else parts.tensor_scale.reshape(1)
    return Parts(parts.codes[None], parts.scale[None], scale, parts.codebook)


def as_rows(operand: Operand) -> Tensor | Parts:
    """x as [rows, k], whatever its leading dimensions; one tensor scale per row. Blocked scales are
    [matrices, bytes]."""
    lead = tuple(operand.shape[:-1])
    rows = prod(lead)
    if operand.is_plain:
        x = operand.tensors[0]
        return x if x.dim() == 2 else x.reshape(rows, operand.shape[-1])
    codes, scale, tensor_scale, codebook = operand.parts()
    if tensor_scale is not None:
        tensor_scale = spread_over_rows(tensor_scale, lead).reshape(rows)
    # Blocked scales are those of each matrix, padded: they have no rows.
    blocked = operand.parsed.layout.scales == "blocked"
    return Parts(
        codes.reshape(rows, codes.shape[-1]),
        scale.reshape(-1 if blocked else rows, scale.shape[-1]),
        tensor_scale,
        codebook,
    )


def spread_over_rows(tensor_scale: Tensor, lead: tuple[int, ...]) -> Tensor:
    """A tensor scale of shape lead[:-1] or lead -> one per row, shape lead."""
    if tuple(tensor_scale.shape) == lead:
        return tensor_scale
    return tensor_scale[..., None].expand(lead)
