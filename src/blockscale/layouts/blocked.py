"""Scales as block-scaled tensor cores read them: atoms of 128 rows by 4 scale columns, 512 bytes.

Inside an atom the 128 rows are four groups of 32, interleaved so that one 16-byte word holds the
four column scales of rows r, r + 32, r + 64 and r + 96:

    ((32,4),(V,4)):((16,4),(0,1))        V elements along K share a scale, hence the stride 0

and atoms follow each other along K first, then along the rows. Rows are padded to 128 and columns
to 4 with zeros. Every offset below is read off that expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, Protocol

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.layouts.algebra import Strided, flatten, tile_to_shape

Major = Literal["k", "mn"]

ATOM_ROWS = 128
ATOM_COLUMNS = 4
ATOM_BYTES = 512


def scale_atom(vector: int, major: Major = "k") -> Strided:
    """The arrangement fixed by the hardware, for `vector` elements per scale.

    major "k" is (rows, K); "mn" is the same atom with its modes exchanged, (K, rows).
    """
    if major not in ("k", "mn"):
        raise ValueError(f"scale_atom: major must be 'k' or 'mn', got {major!r}")
    rows, columns = Strided((32, 4), (16, 4)), Strided((vector, 4), (0, 1))
    first, second = (rows, columns) if major == "k" else (columns, rows)
    return Strided((first.shape, second.shape), (first.stride, second.stride))


def scale_layout(shape: Sequence[int], format: Format | int, major: Major = "k") -> Strided:
    """Offset of the scale of each element of a [rows, K] or [rows, K, L] tensor.

    `format` gives the number of elements that share a scale, or is that number. With major "mn" the
    shape is [K, rows] or [K, rows, L]. Tiles run along K, then rows, then L.
    """
    vector = format if isinstance(format, int) else format.block
    if len(shape) not in (2, 3) or any(extent < 1 for extent in shape):
        raise ValueError(
            f"scale_layout: shape must be (rows, k) or (rows, k, l), got {tuple(shape)}"
        )
    atom = scale_atom(vector, major)
    order = ((2, 1) if major == "k" else (1, 2)) + (3,) * (len(shape) - 2)
    return tile_to_shape(atom, shape, order)


def atom_view(storage: Tensor, rows: int, columns: int) -> Tensor:
    """Blocked bytes [l, bytes] as [32, 4, rest_m, 4, rest_k, l], the order kernels index them in.

    The scale of row r and column c is at [r % 32, r // 32 % 4, r // 128, c % 4, c // 4]. A view:
    writing to it writes the bytes.
    """
    order, extents = _memory_order(rows, columns, storage.shape[0])
    if storage.shape[-1] * storage.shape[0] != prod(extents) or not storage.is_contiguous():
        raise ValueError(
            f"atom_view: {rows} x {columns} scales take contiguous [l, "
            f"{prod(extents) // max(storage.shape[0], 1)}] bytes, got {list(storage.shape)}"
        )
    in_memory = storage.view([extents[mode] for mode in order])
    return in_memory.permute([order.index(mode) for mode in range(len(order))])


def atom_storage(view: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `atom_view`: blocked bytes [l, bytes] of a view [32, 4, rest_m, 4, rest_k, l].

    A view of the same memory, which must hold the atoms one after the other.
    """
    order, extents = _memory_order(rows, columns, view.shape[-1])
    if list(view.shape) != extents:
        raise ValueError(
            f"atom_storage: {rows} x {columns} scales of {view.shape[-1]} matrices are a view "
            f"{extents}, got {list(view.shape)}"
        )
    in_memory = view.permute(order)
    if not in_memory.is_contiguous():
        raise ValueError(
            f"atom_storage: the view's strides {view.stride()} are not those of atoms in memory, "
            f"so its bytes would have to be copied: give them as [l, bytes]"
        )
    return in_memory.view(view.shape[-1], -1)


def _memory_order(rows: int, columns: int, batches: int) -> tuple[list[int], list[int]]:
    """The six modes of `atom_view` from the slowest to the fastest, and their extents.

    Both are read off the layout: modes ((32, 4), rest_m), ((1, 4), rest_k), (1, l), where the two
    1s carry no information.
    """
    layout = scale_layout((rows, columns, batches), 1)  # one "element" for each scale column
    keep = [0, 1, 2, 4, 5, 7]
    extents = [flatten(layout.shape)[i] for i in keep]
    steps = [flatten(layout.stride)[i] for i in keep]
    return sorted(range(len(keep)), key=lambda mode: (-steps[mode], extents[mode])), extents


class Scaled(Protocol):
    """What `blocked_scales` needs of a quantised tensor."""

    @property
    def format(self) -> Format: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def scale(self) -> Tensor: ...
    @property
    def layout(self) -> Unpacks: ...


class Unpacks(Protocol):
    def unpack_scale(self, storage: Tensor, format: Format, shape: tuple[int, ...]) -> Tensor: ...


def blocked_scales(q: Scaled, permuted: bool = False) -> Tensor:
    """The scales of a quantised tensor as a block-scaled GEMM takes them: uint8 [..., bytes].

    With `permuted`, the same bytes as the view [32, 4, rest_m, 4, rest_k, l] of `atom_view`.
    """
    scale = q.layout.unpack_scale(q.scale, q.format, q.shape)
    storage = Blocked().pack(scale, q.format.scale.bits // 8)
    if not permuted:
        return storage
    batches = prod(q.shape[:-2])
    return atom_view(storage.view(batches, -1), q.shape[-2], q.shape[-1] // q.format.block)


class Blocked:
    name = "blocked"
    row_granularity = ATOM_ROWS

    def storage_shape(self, shape: tuple[int, ...], scale_bytes: int) -> tuple[int, ...]:
        """shape: [..., n, blocks] -> [..., bytes]."""
        if scale_bytes != 1:
            raise ValueError(
                "blocked scales are one byte each; this format's take four: use 'rows'"
            )
        tiles = -(-shape[-2] // ATOM_ROWS) * -(-shape[-1] // ATOM_COLUMNS)
        return (*shape[:-2], tiles * ATOM_BYTES)

    def pack(self, scale: Tensor, scale_bytes: int) -> Tensor:
        rows, columns = scale.shape[-2:]
        bytes_shape = self.storage_shape(tuple(scale.shape), scale_bytes)
        if not prod(bytes_shape):
            return torch.zeros(bytes_shape, dtype=torch.uint8, device=scale.device)
        padding = (0, -columns % ATOM_COLUMNS, 0, -rows % ATOM_ROWS)
        padded = torch.nn.functional.pad(scale.reshape(-1, rows, columns), padding)
        atoms = padded.unflatten(1, (-1, 4, 32)).unflatten(
            4, (-1, 4)
        )  # l, rest_m, 4, 32, rest_k, 4
        order, _ = _memory_order(rows, columns, len(padded))
        storage: Tensor = atoms.permute(3, 2, 1, 5, 4, 0).permute(order).reshape(bytes_shape)
        return storage

    def unpack(self, storage: Tensor, shape: tuple[int, ...], scale_bytes: int) -> Tensor:
        rows, columns = shape[-2:]
        if not storage.numel():
            return torch.zeros(shape, dtype=torch.uint8, device=storage.device)
        flat = storage.contiguous().view(-1, storage.shape[-1])
        atoms = atom_view(flat, rows, columns).permute(5, 2, 1, 0, 4, 3)  # l, rm, 4, 32, rk, 4
        padded = atoms.flatten(1, 3).flatten(2, 3)
        return padded[:, :rows, :columns].reshape(shape)

    def slice_rows(self, storage: Tensor, shape: tuple[int, ...], start: int, stop: int) -> Tensor:
        """Whole rows of atoms; shape: [..., n, blocks]."""
        row_of_atoms = -(-shape[-1] // ATOM_COLUMNS) * ATOM_BYTES
        first, last = start // ATOM_ROWS, -(-stop // ATOM_ROWS)
        return storage[..., first * row_of_atoms : last * row_of_atoms]
