"""Pieces that the dialects of other libraries share: module-wise names, dtypes, reciprocals."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blockscale.checkpoint.files import Entry, Files


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
    """1 / x as IEEE divides; a scalar divided by a tensor may be an approximation."""
    return torch.ones_like(x) / x


def reciprocal(scale: Tensor) -> Tensor:
    """float32 r with float32(1 / r) == scale where there is one, else the r that comes nearest.

    There is one for every scale that was itself rounded from a reciprocal, as all of `quantize` and
    all read from a reciprocal are. Other scales move by at most one part in 2^23.
    """
    nearest = inverse(scale)
    best = nearest
    for bound in (torch.inf, 0.0):
        neighbour = nearest.nextafter(torch.full_like(nearest, bound))
        exact = (inverse(neighbour) == scale) & (inverse(best) != scale)
        best = torch.where(exact, neighbour, best)
    return best
