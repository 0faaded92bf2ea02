"""How cuda/kernels/sm120_gemm.cu is shaped to a problem: the Config, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.matmul.block_scaled.operands import operands
from blockscale.problem import Problem

TILE_M = 128  # rows of x
_WARP = 64 * 32  # rows of x by rows of w


@dataclass(frozen=True)
class Config(BaseConfig):
    w_rows: int  # of a CTA, of gate and up together
    stages: int  # of 128 bytes along k

    def __str__(self) -> str:
        tile = f"{TILE_M} x {self.w_rows} x 128 B"
        return f"tile {tile} (m x n x k) by mma.sync with block scales, {self.stages} stages"

    @property
    def threads(self) -> int:
        """A warp loads."""
        return 32 * (TILE_M * self.w_rows // _WARP + 1)

    def tile_n(self, problem: Problem) -> int:
        """Columns of the output."""
        return self.w_rows // (2 if problem.gated else 1)

    def n_tiles(self, problem: Problem) -> int:
        return ceil(problem.n / self.tile_n(problem))

    def m_tiles(self, problem: Problem) -> int:
        """Of all groups; of ragged ones as many as there can be: tiles begin at multiples of their
        rows, so that each group may begin and end inside one."""
        if not problem.ragged:
            return problem.groups * ceil(problem.m / TILE_M)
        return ceil(problem.m / TILE_M) + min(problem.groups, problem.m) - 1

    def ctas(self, problem: Problem) -> int:
        """That are launched: each stays for all its tiles."""
        return max(min(problem.device.sms, self.m_tiles(problem) * self.n_tiles(problem)), 1)

    def band(self, problem: Problem) -> int:
        """Tiles of x that are multiplied by the same weights at about the same time: the CTAs that
        run at once read fewest bytes where both sides of their rectangle are as long."""
        kinds = operands(problem)
        x_bytes, w_bytes = TILE_M * kinds.x_bits, self.w_rows * kinds.w_bits
        wanted = round(sqrt(problem.device.sms * w_bytes / x_bytes))
        return max(1, min(wanted, ceil(problem.m / TILE_M)))
