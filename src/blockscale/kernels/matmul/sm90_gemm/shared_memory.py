"""How a CTA of cuda/gemm/tiled.cuh divides its shared memory: the only place that counts bytes.

    tables | stages of x, codes and scales | decoded scales | staging of results |
    starts of ragged groups | scales of rows of x

The numbers enter a build as defines.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from blockscale.formats import Format
from blockscale.kernels.cuda.tables import SHARED_TABLE
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.problem import Problem

_SWIZZLED = 1024  # where a panel with TMA's 128-byte swizzle may start
_STAGED_ROWS, _STAGED_COLUMNS = 32, 64  # of a warpgroup
_PADDING = 4  # floats, that spread the banks


class SharedMemory(NamedTuple):
    """Bytes."""

    table_bytes: int  # of codes and their values; 0 where tables stay in registers
    x_bytes: int  # of a stage
    code_bytes: int  # of a tile of 16 rows, in a stage
    scale_bytes: int  # of a tile of 16 rows: eight blocks, which stand together
    scale_groups: int  # of these that a stage has of a tile
    scale_tiles: int  # that a stage has scales of, times these
    stage_bytes: int
    decoded_bytes: int  # of one warp: scales as 16-bit floats
    staging_bytes: (
        int  # of a warpgroup: results, and floats that one with gate and one with up exchange
    )

    def defines(self) -> dict[str, str | int]:
        """As kernels/sm90_gemm.cu names them."""
        return {f"BS_{name.upper()}": value for name, value in self._asdict().items()}


def shared_memory(config: Config, format: Format, out: str, gated: bool) -> SharedMemory:
    tiles = 4 * config.tiles_per_warp * config.warpgroups
    x, codes, scales = 2 * TILE_K * config.tile_m, 2 * TILE_K * format.element.bits, 128
    groups, scaled = 1, tiles
    if config.transposed:  # tiles lie below each other, and columns of a CTA may be of several
        groups = scale_groups_across(config, format)
        scaled = groups * TILE_K // 16
    stage = x + tiles * codes + scaled * scales
    wide = out == "float32"
    places = 1 if wide else 2  # for results, in turn
    row = 4 * (_STAGED_COLUMNS + _PADDING) if wide else 2 * _STAGED_COLUMNS
    return SharedMemory(
        table_bytes=SHARED_TABLE * (2 if gated else 1) if config.shared_table else 0,
        x_bytes=x,
        code_bytes=codes,
        scale_bytes=scales,
        scale_groups=groups,
        scale_tiles=scaled,
        stage_bytes=-(-stage // _SWIZZLED) * _SWIZZLED,
        decoded_bytes=(2 if config.transposed else 4) * scales * config.tiles_per_warp,
        staging_bytes=_STAGED_ROWS * (places * row + (4 * _STAGED_COLUMNS if gated else 0)),
    )


def scale_groups_across(config: Config, format: Format) -> int:
    """Of the columns of w that a CTA takes; a CTA may have a part of one."""
    return max(1, config.weight_rows // (8 * format.block))


def holds_sums(config: Config, problem: Problem) -> bool:
    """Whether stages have room for the sums that other CTAs of a cluster send to the one that has
    most to store: cuda/gemm/cluster_sums.cuh."""
    memory = shared_memory(config, problem.w_kind.format, problem.out, problem.gated)
    branches = 2 if problem.gated else 1
    chunks = branches * ceil(config.tile_m / _STAGED_ROWS / branches / config.k_parts)
    sent = 4 * config.weight_rows * _STAGED_ROWS * chunks
    return (config.k_parts - 1) * sent <= config.stages * memory.stage_bytes


def shared_bytes(config: Config, problem: Problem) -> int:
    """That a launch asks for."""
    memory = shared_memory(config, problem.w_kind.format, problem.out, problem.gated)
    starts = 8 * (problem.groups + 1) if problem.ragged else 0
    coded = "@" in problem.x and problem.x_kind.format.has_tensor_scale
    x_scales = 4 * config.tile_m * config.warpgroups if coded else 0
    return (
        _SWIZZLED
        + memory.table_bytes
        + config.stages * memory.stage_bytes
        + 4 * config.warpgroups * memory.decoded_bytes
        + config.warpgroups * memory.staging_bytes
        + starts
        + x_scales
    )
