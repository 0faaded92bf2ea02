"""The one layout that a target's kernels read, for every m."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.layouts import Layout, canonical


def prepared_layout(format: Format, target: str) -> Layout:
    """What `QTensor.prepare` packs to. The reference kernels read the canonical bytes."""
    return canonical(format)
