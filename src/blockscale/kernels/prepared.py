"""The one layout that a target's kernels read, for every m."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.layouts import Layout, canonical
from blockscale.runtime import load_native


def prepared_layout(format: Format, target: str) -> Layout:
    """What `QTensor.prepare` packs to; where there are only reference kernels, the canonical."""
    if target == "cpu" and not isinstance(load_native(), str):
        return Layout("lanes", "lanes")
    return canonical(format)
