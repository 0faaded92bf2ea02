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
from blockscale.layouts.panels import PANEL_BYTES, swizzled_panel
from blockscale.layouts.tensor_memory import DecodedMemory, Region, ScaledMemory, TensorMemory

__all__ = [
    "ATOM_BYTES",
    "ATOM_COLUMNS",
    "ATOM_ROWS",
    "CODES",
    "PANEL_BYTES",
    "SCALES",
    "DecodedMemory",
    "Layout",
    "Region",
    "ScaledMemory",
    "Strided",
    "Swizzle",
    "Swizzled",
    "TensorMemory",
    "atom_storage",
    "atom_view",
    "blocked_scales",
    "bytes_of",
    "canonical",
    "layout",
    "scale_atom",
    "scale_layout",
    "swizzled_panel",
    "tile_to_shape",
]
