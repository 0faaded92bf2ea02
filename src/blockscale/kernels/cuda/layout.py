"""Where CUDA kernels read the weights of a format: in the order of mma fragments."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.layouts import Layout

_FLOATS = ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2")


def fragments(format: Format) -> Layout | None:
    """None for formats that they do not know."""
    element = format.element
    if format.block not in (16, 32) or format.scale.name not in ("ue4m3", "e8m0", "e4m4"):
        return None
    if format.is_codebook:
        name = "folded" if element.bits in (4, 5) else "fragments"
        return Layout(name, "fragments") if 2 <= element.bits <= 5 else None
    return Layout("fragments", "fragments") if element.name in _FLOATS else None
