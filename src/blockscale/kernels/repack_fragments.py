"""Canonical bytes into the order of fragments, by CUDA: see cuda/kernels/repack.cu."""

from __future__ import annotations

from ctypes import Structure

import torch
from torch import Tensor

from blockscale.formats import CATALOGUE, Format
from blockscale.kernels.cuda.rows import PACKINGS, aligned
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.kernels.native import adjacent_columns
from blockscale.kernels.prepared import fragments
from blockscale.layouts import Layout, canonical
from blockscale.runtime import target_of
from blockscale.runtime.cuda import Build, cuda_refusal, current_stream, function

_WARPS = 8
_MOST_TILES = 1 << 15  # of a launch; a thread block takes several where there are more


class RepackArguments(Structure):
    HEADER = Header("repack_arguments", "decode")
    MEMBERS = (
        Member("const u8*", "codes", "[groups, n, bytes]"),
        Member("const u8*", "scale"),
        Member("u8*", "codes_out", "[groups, tiles, bytes]"),
        Member("u8*", "scale_out"),
        Member("long long", "code_group", "bytes between groups"),
        Member("long long", "code_row", "bytes between rows"),
        Member("long long", "scale_group", "bytes between groups"),
        Member("long long", "scale_row", "bytes between rows"),
        Member("int", "n"),
        Member("int", "k"),
    )
    _fields_ = fields(MEMBERS)


def packs_fragments(format: Format, now: Layout, target: Layout, device: torch.device) -> bool:
    """Whether `pack_fragments` does this."""
    return (
        target == fragments(format)
        and now.codes in PACKINGS
        and now.scales == "rows"
        and cuda_refusal(target_of(device)) is None
    )


def pack_fragments(
    codes: Tensor,  # [groups, n, bytes], canonical
    scale: Tensor,
    format: Format,
    now: Layout,
    shape: tuple[int, int, int],
) -> tuple[Tensor, Tensor]:
    groups, n, k = shape
    target = fragments(format)
    if target is None:
        raise ValueError(f"{format} has no order of fragments")  # `packs_fragments` has said so
    codes = aligned(codes, 4) if now.codes == "planes" else adjacent_columns(codes)
    scale = adjacent_columns(scale)
    packed, scales = (
        torch.empty(each(format, shape), dtype=torch.uint8, device=codes.device)
        for each in (target.code_storage_shape, target.scale_storage_shape)
    )
    if packed.numel() == 0:
        return packed, scales
    arguments = RepackArguments(
        codes.data_ptr(),
        scale.data_ptr(),
        packed.data_ptr(),
        scales.data_ptr(),
        codes.stride(0),
        codes.stride(1),
        scale.stride(0),
        scale.stride(1),
        n,
        k,
    )
    tiles = min(-(-n // 16), _MOST_TILES)
    grid = -(-k // (64 * _WARPS)), tiles, groups
    kernel = function(_build(format, now, target), codes.device)
    kernel.launch(grid, 32 * _WARPS, 0, current_stream(codes.device), arguments)
    return packed, scales


def _build(format: Format, now: Layout, target: Layout) -> Build:
    defines = (
        ("BS_BITS", format.element.bits),
        ("BS_BLOCK", format.block),
        ("BS_PLANES", int(now.codes == "planes")),
        ("BS_FOLDED", int(target.codes == "folded")),
    )
    return Build("repack.cu", "repack", defines)


def every_build(target: str) -> list[Build]:
    placed = ((format, fragments(format)) for format in CATALOGUE.values())
    builds = [
        _build(format, canonical(format), layout) for format, layout in placed if layout is not None
    ]
    return list(dict.fromkeys(builds))
