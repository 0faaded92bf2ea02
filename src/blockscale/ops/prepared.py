"""The one layout that a device's kernels read, for every m."""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels import KERNELS
from blockscale.layouts import Layout, canonical
from blockscale.problem import Kind
from blockscale.runtime import Device


def prepared_layout(format: Format, device: Device, x_format: Format | None = None) -> Layout:
    """What `QTensor.prepare` packs to: what the first kernel of products wants; else canonical.

    x_format: of x, where it will be quantised. Then blocked scales come first where a kernel reads
    them, since tensor cores that take them multiply codes as they are.
    """
    wanted = list(filter(None, (each.reads(format, device) for each in KERNELS["matmul"])))
    blocked = [each for each in wanted if each.scales == "blocked"]
    if x_format is not None and blocked and _alike(x_format, format):
        return blocked[0]
    return next(iter(wanted), canonical(format))


def x_layout(format: Format, weight: Kind, device: Device) -> Layout:
    """How x is placed where it is quantised for a product: like blocked weights, whose kernels read
    its scales so; else canonical."""
    place = weight.layout
    if place.scales == "blocked" and device.block_scaled and _alike(format, weight.format):
        return place
    return canonical(format)


def _alike(x: Format, w: Format) -> bool:
    """Whether an instruction takes the scales of both."""
    return (x.block, x.scale) == (w.block, w.scale) and not x.is_codebook and not w.is_codebook
