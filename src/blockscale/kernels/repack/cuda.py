"""Canonical bytes into the order of mma fragments: cuda/kernels/repack.cu."""

from __future__ import annotations

from ctypes import Structure
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.cuda.rows import PACKINGS, aligned, launches_of
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.kernels.native import adjacent_columns
from blockscale.problem import Problem, parse_kind
from blockscale.runtime.cuda import Build, cuda_refusal, current_stream, function

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cuda"
reads = reads_canonical

_WARPS = 8
_MOST_TILES = 1 << 15  # of a launch; a CTA takes several where there are more


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


@dataclass(frozen=True)
class Config(BaseConfig):
    def __str__(self) -> str:
        return "a warp to 16 rows and k=64"


def refuses(problem: Problem) -> str | None:
    if refusal := cuda_refusal(problem.device):
        return refusal
    format, now = problem.x_kind
    target = problem.w_kind.layout
    if target != fragments(format) or now.codes not in PACKINGS or now.scales != "rows":
        return f"packs bits/rows and planes/rows to fragments, not {now} to {target}"
    return None


def configs(problem: Problem) -> list[Config]:
    return [Config()]


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem), builds=lambda: [_build(problem.x, problem.w)])


def _run(problem: Problem, codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    format, now = problem.x_kind
    target = problem.w_kind.layout
    groups, n, k = shape = problem.groups, problem.m, problem.k
    codes = aligned(codes, 4) if now.codes == "planes" else adjacent_columns(codes)
    scale = adjacent_columns(scale)
    packed, scales = (
        torch.empty(each(format, shape), dtype=torch.uint8, device=codes.device)
        for each in (target.code_storage_shape, target.scale_storage_shape)
    )
    if packed.numel() == 0:
        return packed, scales
    tiles = min(-(-n // 16), _MOST_TILES)
    kernel = function(_build(problem.x, problem.w), codes.device)
    for some in launches_of(groups):
        arguments = RepackArguments(
            codes[some].data_ptr(),
            scale[some].data_ptr(),
            packed[some].data_ptr(),
            scales[some].data_ptr(),
            codes.stride(0),
            codes.stride(1),
            scale.stride(0),
            scale.stride(1),
            n,
            k,
        )
        grid = -(-k // (64 * _WARPS)), tiles, some.stop - some.start
        kernel.launch(grid, 32 * _WARPS, 0, current_stream(codes.device), arguments)
    return packed, scales


@lru_cache(maxsize=256)
def _build(x: str, w: str) -> Build:
    (format, now), (_, target) = parse_kind(x), parse_kind(w)
    defines = (
        ("BS_BITS", format.element.bits),
        ("BS_BLOCK", format.block),
        ("BS_PLANES", int(now.codes == "planes")),
        ("BS_FOLDED", int(target.codes == "folded")),
    )
    return Build("repack.cu", "repack", defines)
