"""The names of CuTe's Python DSL for scale-factor layouts.

`loc` and `ip` say where the DSL's compiler is in the program it writes. Nothing is compiled here,
so they are taken and not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from blockscale.layouts import Strided, scale_atom, scale_layout
from blockscale.layouts.algebra import Nested, size_of


class OperandMajorMode(Enum):
    """Which mode of an operand is contiguous. Also found by name, as in `OperandMajorMode("k")`."""

    MN = "mn"
    K = "k"

    @classmethod
    def _missing_(cls, value: object) -> OperandMajorMode | None:
        """Names in any case, and members of enums that name their modes so, such as CuTe's own.

        CuTe's members raise when they are compared with anything else, so their names are read.
        """
        for name in (value, getattr(value, "name", None), getattr(value, "value", None)):
            if isinstance(name, str) and name.upper() in cls.__members__:
                return cls[name.upper()]
        return None


@dataclass(frozen=True)
class BlockScaledBasicChunk:
    """The scale-factor atom fixed by block-scaled tensor-core instructions.

    sf_vec_size   elements along K that share a scale: 16 for NVFP4, 32 for the MX formats
    major_mode    K: modes (rows, K). MN: the same atom as (K, rows). An `OperandMajorMode`, this
                  one or CuTe's, or its name
    """

    sf_vec_size: int
    major_mode: OperandMajorMode = OperandMajorMode.K

    def __post_init__(self) -> None:
        _check_vector("BlockScaledBasicChunk", self.sf_vec_size)
        object.__setattr__(self, "major_mode", _major_mode(self.major_mode))

    @property
    def layout(self) -> Strided:
        return scale_atom(self.sf_vec_size, self.major_mode.value)


def tile_atom_to_shape_SF(  # noqa: N802
    Shape: Sequence[Nested],  # noqa: N803
    sf_vec_size: int,
    *,
    loc: object = None,
    ip: object = None,
) -> Strided:
    """The layout of the scale factors of a tensor of shape (MN, K, L): a mode may be nested."""
    _check_vector("tile_atom_to_shape_SF", sf_vec_size)
    if len(Shape) != 3:
        raise ValueError(
            f"tile_atom_to_shape_SF: Shape must be (MN, K, L), got {tuple(Shape)}: L is 1 for a "
            "matrix"
        )
    return scale_layout([size_of(mode) for mode in Shape], sf_vec_size)


def _check_vector(name: str, sf_vec_size: Any) -> None:
    if not isinstance(sf_vec_size, int) or isinstance(sf_vec_size, bool) or sf_vec_size < 1:
        raise ValueError(
            f"{name}: sf_vec_size must be a positive int, 16 for NVFP4 or 32 for MX, "
            f"got {sf_vec_size!r}"
        )


def _major_mode(given: Any) -> OperandMajorMode:
    try:
        return OperandMajorMode(given)
    except ValueError:
        raise ValueError(
            f"BlockScaledBasicChunk: major_mode must be K or MN, by name or as an "
            f"OperandMajorMode, got {given!r}"
        ) from None
