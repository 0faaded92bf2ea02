"""The names of CuTe's Python DSL for scale-factor layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from blockscale.layouts import Strided, scale_atom, scale_layout


@dataclass(frozen=True)
class BlockScaledBasicChunk:
    """The scale-factor atom fixed by block-scaled tensor-core instructions."""

    sf_vec_size: int
    major_mode: Literal["k", "mn"] = "k"

    @property
    def layout(self) -> Strided:
        return scale_atom(self.sf_vec_size, self.major_mode)


def tile_atom_to_shape_SF(Shape: Sequence[int], sf_vec_size: int) -> Strided:  # noqa: N802, N803
    """The layout of the scale factors of a tensor of shape (MN, K, L)."""
    return scale_layout(Shape, sf_vec_size)
