"""How a CTA of cuda/gemm/warp_scaled.cuh divides its shared memory: the only place that counts
bytes.

    stages of a panel of x, a panel of w, scales of x, scales of w | starts of ragged groups

The numbers enter a build as defines.
"""

from __future__ import annotations

from typing import NamedTuple

from blockscale.kernels.matmul.block_scaled.operands import Operands, operands
from blockscale.kernels.matmul.sm120_gemm.config import TILE_M, Config
from blockscale.layouts import ATOM_BYTES
from blockscale.problem import Problem

_SWIZZLED = 1024  # where a panel with TMA's 128-byte swizzle may start
_PANEL_ROW = 128


class SharedMemory(NamedTuple):
    """Bytes."""

    x_bytes: int  # of a stage
    w_bytes: int
    stage_bytes: int
    stage_tx: int  # that TMA counts: unpacked elements by their size in memory

    def defines(self) -> dict[str, str | int]:
        """As kernels/sm120_gemm.cu names them."""
        return {f"BS_{name.upper()}": value for name, value in self._asdict().items()}


def scale_groups(kinds: Operands) -> int:
    """Of a stage: four scales of a row each."""
    return kinds.panel_k // (4 * kinds.block)


def shared_memory(config: Config, kinds: Operands, gated: bool) -> SharedMemory:
    x, w = TILE_M * _PANEL_ROW, config.w_rows * _PANEL_ROW
    atoms = scale_groups(kinds) * (3 if gated else 2)  # an atom has 128 rows, of which w may use 64
    scales = ATOM_BYTES * atoms
    codes = TILE_M * kinds.panel_bytes(kinds.x_bits)
    codes += config.w_rows * kinds.panel_bytes(kinds.w_bits)
    whole = -(-(x + w + scales) // _SWIZZLED) * _SWIZZLED
    return SharedMemory(x_bytes=x, w_bytes=w, stage_bytes=whole, stage_tx=codes + scales)


def shared_bytes(config: Config, problem: Problem) -> int:
    """That a launch asks for."""
    starts = 8 * (problem.groups + 1) if problem.ragged else 0
    memory = shared_memory(config, operands(problem), problem.gated)
    return _SWIZZLED + config.stages * memory.stage_bytes + starts
