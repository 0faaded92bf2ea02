"""The one layout that a target's kernels read, for every m."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels.native import streams
from blockscale.layouts import Layout, canonical
from blockscale.runtime import load_native
from blockscale.runtime.cuda import cuda_refusal

_CPU_TILES = Layout("cpu_tiles", "cpu_tiles")
_FLOATS = ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2")


def prepared_layout(format: Format, target: str) -> Layout:
    """What `QTensor.prepare` packs to: the canonical layout, unless faster kernels read another."""
    if target == "cpu" and streams(format) and not isinstance(load_native(), str):
        return _CPU_TILES
    placed = fragments(format) if cuda_refusal(target) is None else None
    return placed or canonical(format)


def fragments(format: Format) -> Layout | None:
    """Where GPU kernels read the weights of a format; None for formats that they do not know."""
    element = format.element
    if format.block not in (16, 32) or format.scale.name not in ("ue4m3", "e8m0", "e4m4"):
        return None
    if format.is_codebook:
        name = "folded" if element.bits in (4, 5) else "fragments"
        return Layout(name, "fragments") if 2 <= element.bits <= 5 else None
    return Layout("fragments", "fragments") if element.name in _FLOATS else None
