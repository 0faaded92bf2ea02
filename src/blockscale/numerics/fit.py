"""A codebook fitted to data: Lloyd-Max on block-normalised numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import Codebook
from blockscale.numerics.exact import is_finite_bits, magnitude_bits, widen

_BINS = 1 << 14  # of [-1, 1]; far finer than 32 levels can notice


def fit_levels(samples: Tensor, bits: int, block: int, iterations: int = 300) -> Codebook:
    """The 2^bits levels with the least squared error on samples / amax(block), weighted by amax^2.

    The weight makes this the error of the tensor, not of its normalised blocks. Each step moves
    every level to the mean of the numbers nearest to it, until nothing moves; the error falls at
    each step. The start is the density that is best for many levels: the cube root of the data's.
    """
    mass, moment = (part.cpu() for part in _histogram(samples, block))
    centre = (torch.arange(_BINS, dtype=torch.float64) + 0.5) * (2 / _BINS) - 1
    density = (mass / mass.max()).pow(1 / 3).cumsum(0)
    share = (torch.arange(1 << bits, dtype=torch.float64) + 0.5) / (1 << bits)
    levels = centre[torch.searchsorted(density, share * density[-1])]
    for _ in range(iterations):
        nearest = torch.bucketize(centre, (levels[:-1] + levels[1:]) / 2)
        total = torch.zeros_like(levels).scatter_add_(0, nearest, mass)
        sums = torch.zeros_like(levels).scatter_add_(0, nearest, moment)
        moved = torch.where(total > 0, sums / total.clamp(min=1e-300), levels).clamp(-1, 1)
        settled = torch.equal(moved, levels)
        levels = moved
        if settled:
            break
    return Codebook(bits=bits, values=tuple(levels.sort().values.tolist()))


def _histogram(samples: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Weight, and weight times value, of the normalised samples in each bin."""
    finite = is_finite_bits(magnitude_bits(samples))
    blocks = torch.where(finite, widen(samples), 0.0).reshape(-1, block)
    amax = blocks.abs().amax(-1, keepdim=True)
    blocks, amax = blocks[amax[:, 0] > 0], amax[amax[:, 0] > 0]
    if len(blocks) == 0:
        raise ValueError("fit_codebook: samples have no finite value but zero: nothing to fit")
    normal = (blocks / amax).flatten()
    weight = (amax / amax.max()).square().expand_as(blocks).flatten()
    which = ((normal + 1) * (_BINS / 2)).to(torch.int64).clamp(max=_BINS - 1)
    empty = torch.zeros(_BINS, dtype=torch.float64, device=samples.device)
    return empty.scatter_add(0, which, weight), empty.scatter_add(0, which, weight * normal)
