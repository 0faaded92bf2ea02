"""Canonical bytes into the cpu_tiles layout, by native code."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.native import (
    NativeConfig,
    adjacent_columns,
    call_native,
    native_configs,
    native_refusal,
    pointer,
    strided_batch,
)
from blockscale.layouts import Layout
from blockscale.problem import Problem
from blockscale.runtime import native

__all__ = ["CPU_TILES", "NAME", "bind", "can_pack", "configs", "pack", "reads", "refuses"]

NAME = "cpu"
reads = reads_canonical

CPU_TILES = Layout("cpu_tiles", "cpu_tiles")


def refuses(problem: Problem) -> str | None:
    format, now = problem.x_kind
    if problem.w_kind.layout != CPU_TILES or not can_pack(format, now):
        return (
            f"packs bits/rows and planes/rows to {CPU_TILES}, not {now} to {problem.w_kind.layout}"
        )
    return native_refusal(problem.device)


def can_pack(format: Format, now: Layout) -> bool:
    canonical = now.codes in ("bits", "planes") and now.scales == "rows"
    return canonical and format.element.bits >= 2


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def bind(
    problem: Problem, config: NativeConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, config))


def _run(
    problem: Problem, config: NativeConfig, codes: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    format, now = problem.x_kind
    return pack(codes, scale, format, now, (problem.groups, problem.m, problem.k), config)


def pack(
    codes: Tensor,  # [groups, n, bytes], canonical
    scale: Tensor,
    format: Format,
    now: Layout,
    shape: tuple[int, int, int],
    config: NativeConfig,
) -> tuple[Tensor, Tensor]:
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
