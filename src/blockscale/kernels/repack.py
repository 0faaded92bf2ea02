"""Canonical bytes into the cpu_tiles layout, by native code."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.kernels.native import (
    adjacent_columns,
    call_native,
    native_configs,
    native_refusal,
    pointer,
    strided_batch,
)
from blockscale.layouts import Layout
from blockscale.runtime import native, target_of

CPU_TILES = Layout("cpu_tiles", "cpu_tiles")


def packs_cpu_tiles(format: Format, now: Layout, target: Layout, device: torch.device) -> bool:
    """Whether `pack_cpu_tiles` does this."""
    return (
        target == CPU_TILES
        and now.codes in ("bits", "planes")
        and now.scales == "rows"
        and format.element.bits >= 2
        and native_refusal(target_of(device)) is None
    )


def pack_cpu_tiles(
    codes: Tensor,  # [groups, n, bytes], canonical
    scale: Tensor,
    format: Format,
    now: Layout,
    shape: tuple[int, int, int],
) -> tuple[Tensor, Tensor]:
    config = native_configs()[0]
    codes, scale = adjacent_columns(codes), adjacent_columns(scale)
    packed = torch.empty(CPU_TILES.code_storage_shape(format, shape), dtype=torch.uint8)
    scales = torch.empty(CPU_TILES.scale_storage_shape(format, shape), dtype=torch.uint8)
    call = native.Repack(
        format.element.bits,
        format.block,
        format.scale.bits // 8,
        native.CODE_LAYOUTS[now.codes],
        *shape,
        strided_batch(codes),
        strided_batch(scale),
        pointer(packed),
        pointer(scales),
        native.ISAS.index(config.isa),
        config.threads,
    )
    call_native("bs_repack", call)
    return packed, scales
