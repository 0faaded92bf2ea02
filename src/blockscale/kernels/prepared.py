"""The one layout that a target's kernels read, for every m."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels.native import streams
from blockscale.layouts import Layout, canonical
from blockscale.runtime import load_native


def prepared_layout(format: Format, target: str) -> Layout:
    """What `QTensor.prepare` packs to: the canonical layout, unless faster kernels read another."""
    if target == "cpu" and streams(format) and not isinstance(load_native(), str):
        return Layout("lanes", "lanes")
    return canonical(format)
