"""A Layout says where codes and scales sit. It holds its own inverse and knows no machine."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from blockscale.formats import Format
from blockscale.layouts.bits import BitStream
from blockscale.layouts.blocked import Blocked
from blockscale.layouts.cpu_tiles import CpuTileCodes, CpuTileScales
from blockscale.layouts.fragments import FragmentCodes, FragmentScales
from blockscale.layouts.planes import BitPlanes
from blockscale.layouts.rows import RowMajor


class CodeLayout(Protocol):
    """Placement of codes [..., n, k] of a given width."""

    name: str
    row_granularity: int  # rows can be sliced at multiples of this
    k_granularity: int  # k must be a multiple of this

    def storage_shape(self, shape: tuple[int, ...], bits: int) -> tuple[int, ...]: ...
    def pack(self, codes: Tensor, bits: int) -> Tensor: ...
    def unpack(self, storage: Tensor, shape: tuple[int, ...], bits: int) -> Tensor: ...
    def slice_rows(
        self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int
    ) -> Tensor: ...


class ScaleLayout(Protocol):
    """Placement of scales [..., n, blocks] of a given number of bytes."""

    name: str
    row_granularity: int

    def storage_shape(self, shape: tuple[int, ...], scale_bytes: int) -> tuple[int, ...]: ...
    def pack(self, scale: Tensor, scale_bytes: int) -> Tensor: ...
    def unpack(self, storage: Tensor, shape: tuple[int, ...], scale_bytes: int) -> Tensor: ...
    def slice_rows(
        self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int
    ) -> Tensor: ...


CODES: dict[str, CodeLayout] = {
    layout.name: layout
    for layout in (
        BitStream(),
        BitPlanes(),
        CpuTileCodes(),
        FragmentCodes("fragments", folded=False),
        FragmentCodes("folded", folded=True),
    )
}
SCALES: dict[str, ScaleLayout] = {
    layout.name: layout for layout in (RowMajor(), Blocked(), CpuTileScales(), FragmentScales())
}


@dataclass(frozen=True)
class Layout:
    """Where the codes sit and where the scales sit, by name: "bits/rows", "planes/blocked"."""

    codes: str
    scales: str
    name: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.codes not in CODES or self.scales not in SCALES:
            raise ValueError(
                f"unknown layout {self.codes}/{self.scales}: codes are {', '.join(CODES)}, "
                f"scales {', '.join(SCALES)}"
            )
        object.__setattr__(self, "name", f"{self.codes}/{self.scales}")

    def __str__(self) -> str:
        return self.name

    @property
    def row_granularity(self) -> int:
        return max(CODES[self.codes].row_granularity, SCALES[self.scales].row_granularity)

    def k_granularity(self, format: Format) -> int:
        """What k must be a multiple of: blocks are whole, and so are the groups codes sit in."""
        return max(format.block, CODES[self.codes].k_granularity)

    def check(self, format: Format, shape: tuple[int, ...]) -> None:
        """Refuse a shape that this layout cannot hold."""
        multiple = self.k_granularity(format)
        if shape[-1] % multiple:
            raise ValueError(
                f"{format} in layout {self} needs k divisible by {multiple}, got {shape[-1]}: "
                "pad the weight or keep this layer unquantised"
            )
        self.scale_storage_shape(format, shape)

    def code_storage_shape(self, format: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
        return CODES[self.codes].storage_shape(shape, format.element.bits)

    def scale_storage_shape(self, format: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
        return SCALES[self.scales].storage_shape(
            blocks_shape(format, shape), format.scale.bits // 8
        )

    def pack_codes(self, codes: Tensor, format: Format) -> Tensor:
        """uint8 [..., n, k], one code per byte -> storage."""
        return CODES[self.codes].pack(codes, format.element.bits)

    def unpack_codes(self, storage: Tensor, format: Format, shape: tuple[int, ...]) -> Tensor:
        return CODES[self.codes].unpack(storage, shape, format.element.bits)

    def pack_scale(self, scale: Tensor, format: Format) -> Tensor:
        """uint8 [..., n, blocks * bytes] -> storage."""
        return SCALES[self.scales].pack(scale, format.scale.bits // 8)

    def unpack_scale(self, storage: Tensor, format: Format, shape: tuple[int, ...]) -> Tensor:
        return SCALES[self.scales].unpack(
            storage, blocks_shape(format, shape), format.scale.bits // 8
        )

    def slice_rows(
        self, codes: Tensor, scale: Tensor, format: Format, shape: tuple[int, ...], rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Storage of rows start to stop, which must fall on `row_granularity`."""
        blocks = blocks_shape(format, shape)
        return (
            CODES[self.codes].slice_rows(codes, shape, rows.start, rows.stop),
            SCALES[self.scales].slice_rows(scale, blocks, rows.start, rows.stop),
        )

    @property
    def cuts_k(self) -> bool:
        """Whether the bytes of a row follow its columns, so that k can be cut."""
        return self.codes in ("bits", "planes") and self.scales == "rows"

    def slice_k(
        self, codes: Tensor, scale: Tensor, format: Format, columns: slice
    ) -> tuple[Tensor, Tensor]:
        """Storage of columns start to stop, which must fall on `k_granularity`: `cuts_k` alone."""
        return (
            codes[..., bytes_of(columns, format.element.bits)],
            scale[..., bytes_of(columns, format.scale.bits, format.block)],
        )


def bytes_of(columns: slice, bits: int, block: int = 1) -> slice:
    """Where columns begin and end in a row that has so many bits for each block of them."""
    return slice(columns.start // block * bits // 8, columns.stop // block * bits // 8)


def blocks_shape(format: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // format.block)


def canonical(format: Format) -> Layout:
    """How a tensor is born: row-major scales; bit planes for codebooks, a bit stream for floats.

    Codes of 8 bits are bytes either way.
    """
    planes = format.is_codebook and format.element.bits < 8
    return Layout("planes" if planes else "bits", "rows")


def layout(name: str | Layout, base: Layout | None = None) -> Layout:
    """By name: "bits/rows" names both parts; "blocked" or "planes" changes one part of `base`."""
    if isinstance(name, Layout):
        return name
    codes, _, scales = name.partition("/")
    if scales and codes in CODES and scales in SCALES:
        return Layout(codes, scales)
    if base is not None and name in CODES:
        return Layout(name, base.scales)
    if base is not None and name in SCALES:
        return Layout(base.codes, name)
    both = [f"{codes}/{scales}" for codes in CODES for scales in SCALES]
    known = both if base is None else [*CODES, *SCALES, *both]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"unknown layout {name!r}: did you mean {nearest!r}? Known: {', '.join(known)}"
    )
