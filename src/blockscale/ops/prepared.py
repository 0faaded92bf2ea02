"""The one layout that a device's kernels read, for every m."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels import KERNELS
from blockscale.layouts import Layout, canonical
from blockscale.runtime import Device


def prepared_layout(format: Format, device: Device) -> Layout:
    """What `QTensor.prepare` packs to: what the first kernel of products wants; else canonical."""
    wanted = (kernel.reads(format, device) for kernel in KERNELS["matmul"])
    return next(filter(None, wanted), canonical(format))
