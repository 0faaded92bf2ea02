"""How a CTA of cuda/gemm/mixed.cuh divides its shared memory: the only place that counts bytes.

    stages of x, codes and scales | decoded scales | staging of results | starts of ragged groups

The numbers enter a build as defines.
"""

from __future__ import annotations

from typing import NamedTuple

from blockscale.formats import Format
from blockscale.kernels.matmul.sm100_mixed_gemm.config import CTA_ROWS, DECODING, TILE_K, Config
from blockscale.problem import Problem

_SWIZZLED = 1024  # where a panel with TMA's 128-byte swizzle may start
_STAGED_ROWS, _STAGED_COLUMNS = 32, 64
_PADDING = 4  # floats, that spread the banks
TILES = CTA_ROWS // 16  # of 16 rows of w


class SharedMemory(NamedTuple):
    """Bytes."""

    x_bytes: int  # of a stage
    code_bytes: int  # of a tile of 16 rows, in a stage
    scale_bytes: int  # of a tile of 16 rows: eight blocks, which stand together
    stage_bytes: int
    decoded_bytes: int  # of one warp: scales as 16-bit floats
    staging_bytes: int  # results

    def defines(self) -> dict[str, str | int]:
        """As kernels/sm100_mixed_gemm.cu names them."""
        return {f"BS_{name.upper()}": value for name, value in self._asdict().items()}


def shared_memory(config: Config, format: Format, out: str) -> SharedMemory:
    x = 2 * TILE_K * (config.tile_m // config.ctas)
    codes, scales = 2 * TILE_K * format.element.bits, 128
    stage = x + TILES * (codes + scales)
    row = 4 * (_STAGED_COLUMNS + _PADDING) if out == "float32" else 2 * _STAGED_COLUMNS
    return SharedMemory(
        x_bytes=x,
        code_bytes=codes,
        scale_bytes=scales,
        stage_bytes=-(-stage // _SWIZZLED) * _SWIZZLED,
        decoded_bytes=4 * scales,
        staging_bytes=_STAGED_ROWS * row,
    )


def shared_bytes(config: Config, problem: Problem) -> int:
    """That a launch asks for."""
    memory = shared_memory(config, problem.w_kind.format, problem.out)
    starts = 8 * (problem.groups + 1) if problem.ragged else 0
    stages = config.stages * memory.stage_bytes
    return _SWIZZLED + stages + DECODING * memory.decoded_bytes + memory.staging_bytes + starts
