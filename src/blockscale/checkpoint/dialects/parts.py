"""Pieces that the dialects of other libraries share: names, dtypes, reciprocals, row orders."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blockscale.checkpoint.files import Entry, Files

_SMALLEST_SCALE = 2.0**-128


def siblings(files: Files, module: str, roles: Mapping[str, torch.dtype]) -> dict[str, Entry]:
    """The tensors `module.role`, each of its dtype; a missing or different one is an error."""
    found = {}
    for role, dtype in roles.items():
        entry = files.entries.get(f"{module}.{role}")
        if entry is None:
            raise ValueError(f"{files.path}: {module} has quantised weights but no {role}")
        if entry.dtype != dtype:
            raise ValueError(f"{files.path}: {entry.name} must be {dtype}, got {entry.dtype}")
        found[role] = entry
    return found


def check_blocks(
    files: Files, codes: Entry, scale: Entry, shape: tuple[int, ...], block: int
) -> None:
    """Scales must be [..., n, k / block] for the shape that the codes imply."""
    wanted = (*shape[:-1], shape[-1] // block)
    if shape[-1] % block or scale.shape != wanted:
        raise ValueError(
            f"{files.path}: {codes.name} holds {list(shape)}, so {scale.name} must be "
            f"{list(wanted)}, got {list(scale.shape)}"
        )


def is_scalar(entry: Entry) -> bool:
    return entry.shape in ((), (1,))


def inverse(x: Tensor) -> Tensor:
    """float32(1 / x) as IEEE divides; a scalar divided by a tensor may be an approximation.

    A float32 that is itself the inverse of one, as every tensor scale of `quantize` is and all that
    are read from reciprocals, comes back exactly from two inversions. Others, one in six, move by
    at most one part in 2^23; no neighbouring reciprocal would serve them better.
    """
    return torch.ones_like(x) / x


def inverse_of_scale(name: str, x: Tensor) -> Tensor:
    """Of the tensor scale of a weight: finite, so that it comes back.

    2^-128, the smallest of `quantize`, is the inverse of the largest float32 and gets that one,
    though its own inverse is 2^128. What is smaller is the inverse of no float32.
    """
    if not x.is_meta and (x < _SMALLEST_SCALE).any():
        raise ValueError(
            f"{name}: tensor_scale {x.min().item():.9g} is too small to be stored as its "
            f"reciprocal: quantise with one of at least {_SMALLEST_SCALE:.9g}, or write the "
            "blockscale dialect"
        )
    return inverse(x).clamp(max=torch.finfo(torch.float32).max)


def gate_before_up(x: Tensor, dim: int) -> Tensor:
    """gate 0, up 0, gate 1, up 1, ... -> all gates, then all ups; dim counts from the end."""
    _check_pairs(x, dim)
    return torch.flatten(x.unflatten(dim, (-1, 2)).transpose(dim - 1, dim), dim - 1, dim)


def gate_and_up_in_turn(x: Tensor, dim: int) -> Tensor:
    """The other way round."""
    _check_pairs(x, dim)
    return torch.flatten(x.unflatten(dim, (2, -1)).transpose(dim - 1, dim), dim - 1, dim)


def _check_pairs(x: Tensor, dim: int) -> None:
    if x.dim() < -dim or x.shape[dim] % 2:
        raise ValueError(f"gate and up must have as many rows, got {list(x.shape)} of both")
