"""Panels of shared memory: rows of 128 bytes along k, as TMA writes them and tensor cores read them
with a swizzle of 128 bytes."""

from __future__ import annotations

from blockscale.layouts.algebra import Strided, Swizzle, Swizzled

PANEL_BYTES = 128  # of a row
CHUNK_BYTES = 16  # that a swizzle moves as one


def swizzled_panel(rows: int) -> Swizzled:
    """(row, byte) -> where it is, from a multiple of 1024 bytes on: eight rows have the same 16
    bytes of k in eight different places, so that no two of them are in the same banks."""
    return Swizzle(3, 4, 3).compose(Strided((rows, PANEL_BYTES), (PANEL_BYTES, 1)))
