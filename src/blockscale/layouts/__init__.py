"""Where codes and scales sit: pack, unpack, storage shape; pure functions of shape."""

from blockscale.layouts.algebra import Strided, Swizzle, Swizzled, tile_to_shape
from blockscale.layouts.blocked import (
    ATOM_BYTES,
    ATOM_COLUMNS,
    ATOM_ROWS,
    atom_storage,
    atom_view,
    blocked_scales,
    scale_atom,
    scale_layout,
)
from blockscale.layouts.layout import CODES, SCALES, Layout, bytes_of, canonical, layout

__all__ = [
    "ATOM_BYTES",
    "ATOM_COLUMNS",
    "ATOM_ROWS",
    "CODES",
    "SCALES",
    "Layout",
    "Strided",
    "Swizzle",
    "Swizzled",
    "atom_storage",
    "atom_view",
    "blocked_scales",
    "bytes_of",
    "canonical",
    "layout",
    "scale_atom",
    "scale_layout",
    "tile_to_shape",
]
