"""How a CTA of cuda/gemm/stream.cuh divides its shared memory: the only place that counts bytes.

    table | row of zeros | stages of x, codes and scales | decoded scales

Sums take the place of the stages when these have been read. The numbers enter a build as defines.
"""

from __future__ import annotations

from typing import NamedTuple

from blockscale.formats import Format
from blockscale.kernels.cuda.tables import SHARED_TABLE
from blockscale.kernels.matmul.stream.config import Config

_TABLE = 2 * SHARED_TABLE  # of gate and of up; without a gate, rows are as far apart
_PITCH_OFFSET = 16  # bytes: eight rows of x spread over all banks for ldmatrix
_SUM_OFFSET = 4  # floats: four lanes spread over all banks when they store sums
_SWIZZLED = 1024  # where a panel with TMA's 128-byte swizzle may start


class SharedMemory(NamedTuple):
    """Bytes, unless said otherwise."""

    table_bytes: int  # of codes and their values; 0 where the table stays in registers
    zero_bytes: int  # a row of x that is not there, where tile_m is below 8
    x_pitch: int  # of a row of x; wgmma reads panels of 64 k instead
    x_bytes: int  # of x for one k warp, in a stage
    code_bytes: int  # of a tile of 16 rows, in a stage
    scale_groups: int  # scales of eight blocks, which stand together, that a stage needs
    scale_bytes: int  # of a tile of 16 rows, in a stage
    stage_alignment: int
    stage_bytes: int
    decoded_bytes: int  # of one warp: scales as 16-bit floats, where they multiply weights
    sum_pitch: int  # floats from one row of x to the next
    total: int  # that a launch asks for

    def defines(self) -> dict[str, str | int]:
        """As kernels/stream.cu names them."""
        named = self._asdict()
        del named["total"]
        return {f"BS_{name.upper()}": value for name, value in named.items()}


def shared_memory(
    config: Config, format: Format, scales_weights: bool, gated: bool
) -> SharedMemory:
    branches = 2 if gated else 1
    tiles = config.tiles_per_warp * config.n_warps * config.k_warps
    pitch = 2 * config.tile_k + (0 if config.wgmma else _PITCH_OFFSET)
    x = config.tile_m * pitch
    codes = 2 * config.tile_k * format.element.bits
    groups = max(1, config.tile_k // (8 * format.block))
    scales = 128 * groups
    alignment = _SWIZZLED if config.wgmma else 16
    stage = config.k_warps * x + tiles * (codes + scales)
    stage = -(-stage // alignment) * alignment
    decoded = 4 * scales * config.tiles_per_warp if scales_weights else 0
    sum_pitch = config.weight_rows // branches + _SUM_OFFSET
    sums = 4 * config.k_warps * branches * config.tile_m * sum_pitch
    zeros = 2 * config.tile_k + 32 if config.tile_m < 8 else 0
    table = _TABLE if config.shared_table else 0
    before = table + (_SWIZZLED if config.wgmma else zeros)
    held = config.stages * stage + decoded * config.n_warps * config.k_warps
    return SharedMemory(
        table_bytes=table,
        zero_bytes=zeros,
        x_pitch=pitch,
        x_bytes=x,
        code_bytes=codes,
        scale_groups=groups,
        scale_bytes=scales,
        stage_alignment=alignment,
        stage_bytes=stage,
        decoded_bytes=decoded,
        sum_pitch=sum_pitch,
        total=before + max(held, sums),
    )
