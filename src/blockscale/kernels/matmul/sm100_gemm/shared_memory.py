"""How a CTA of cuda/gemm/block_scaled.cuh divides its shared memory: the only place that counts
bytes.

    stages of panels of x, panels of w, scales of x, scales of w | starts of ragged groups

The numbers enter a build as defines.
"""

from __future__ import annotations

from typing import NamedTuple

from blockscale.kernels.matmul.block_scaled.operands import Operands, operands
from blockscale.kernels.matmul.sm100_gemm.config import CTA_ROWS, Config
from blockscale.layouts import ATOM_BYTES
from blockscale.problem import Problem

_SWIZZLED = 1024  # where a panel with TMA's 128-byte swizzle may start
_PANEL_ROW = 128


class SharedMemory(NamedTuple):
    """Bytes."""

    x_bytes: int  # of a stage
    w_bytes: int
    scale_bytes: int
    stage_bytes: int
    stage_tx: int  # that TMA counts: unpacked elements by their size in memory

    def defines(self) -> dict[str, str | int]:
        """As kernels/sm100_gemm.cu names them."""
        told = self._asdict()
        del told["scale_bytes"]
        return {f"BS_{name.upper()}": value for name, value in told.items()}


def shared_memory(config: Config, kinds: Operands) -> SharedMemory:
    w_rows = config.mma_n // config.ctas
    x, w = (rows * _PANEL_ROW * config.panels for rows in (CTA_ROWS, w_rows))
    atoms = config.scale_groups(kinds) * (1 + config.mma_n // 128)
    scales = ATOM_BYTES * atoms
    codes = CTA_ROWS * kinds.panel_bytes(kinds.x_bits) + w_rows * kinds.panel_bytes(kinds.w_bits)
    return SharedMemory(
        x_bytes=x,
        w_bytes=w,
        scale_bytes=scales,
        stage_bytes=-(-(x + w + scales) // _SWIZZLED) * _SWIZZLED,
        stage_tx=config.panels * codes + scales,
    )


def shared_bytes(config: Config, problem: Problem) -> int:
    """That a launch asks for."""
    starts = 8 * (problem.groups + 1) if problem.ragged else 0
    memory = shared_memory(config, operands(problem))
    return _SWIZZLED + config.stages * memory.stage_bytes + starts
