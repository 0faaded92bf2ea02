"""How cuda/kernels/sm100_gemm.cu is shaped to a problem: the Config, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.matmul.block_scaled.operands import Operands, operands
from blockscale.kernels.matmul.sm100_gemm.columns import plan
from blockscale.layouts import ScaledMemory
from blockscale.problem import Problem

CTA_ROWS = 128  # of x: the lanes of TMEM
INSTRUCTION_N = 256  # rows of w, at the most
THREADS = 192


@dataclass(frozen=True)
class Config(BaseConfig):
    mma_n: int  # rows of w multiplied together, of gate and up: 384 are two instructions
    ctas: int  # 2: pairs of CTAs that multiply 256 rows of x together
    panels: int  # of 128 bytes along k, of a stage
    stages: int
    multicast: bool = False  # one CTA of a pair loads scales of w for both

    def __str__(self) -> str:
        pair = "pairs of CTAs, " if self.ctas == 2 else ""
        shared = ", scales of w by multicast" if self.multicast else ""
        tile = f"{self.tile_m} x {self.mma_n} x {128 * self.panels} B"
        return f"tile {tile} (m x n x k) by tcgen05, {pair}{self.stages} stages{shared}"

    @property
    def tile_m(self) -> int:
        return CTA_ROWS * self.ctas

    def tile_n(self, problem: Problem) -> int:
        """Columns of the output."""
        return self.mma_n // (2 if problem.gated else 1)

    def w_box_rows(self, problem: Problem) -> int:
        """That one load brings: of a matrix, or of this CTA's half of an instruction's rows."""
        if problem.gated:
            return self.tile_n(problem)
        return 64 if self.mma_n > INSTRUCTION_N else self.mma_n // self.ctas

    def tile_k(self, kinds: Operands) -> int:
        return self.panels * kinds.panel_k

    def scale_groups(self, kinds: Operands) -> int:
        """Of a stage: four scales of a row each."""
        return self.tile_k(kinds) // (4 * kinds.block)

    def columns(self, kinds: Operands) -> ScaledMemory:
        return plan(self.mma_n, self.scale_groups(kinds), self.stages)

    def n_tiles(self, problem: Problem) -> int:
        return ceil(problem.n / self.tile_n(problem))

    def m_tiles(self, problem: Problem) -> int:
        """Of all groups; of ragged ones as many as there can be: tiles begin at multiples of their
        rows, so that each group may begin and end inside one."""
        if not problem.ragged:
            return problem.groups * ceil(problem.m / self.tile_m)
        return ceil(problem.m / self.tile_m) + min(problem.groups, problem.m) - 1

    def clusters(self, problem: Problem) -> int:
        """CTAs or pairs that are launched: each stays for all its tiles."""
        places = max(problem.device.sms // self.ctas, 1)
        return max(min(places, self.m_tiles(problem) * self.n_tiles(problem)), 1)

    def band(self, problem: Problem) -> int:
        """Tiles of x that are multiplied by the same weights at about the same time: the clusters
        that run at once read fewest bytes where both sides of their rectangle are as long."""
        kinds = operands(problem)
        x_bytes, w_bytes = self.tile_m * kinds.x_bits, self.mma_n * kinds.w_bits
        wanted = round(sqrt(problem.device.sms / self.ctas * w_bytes / x_bytes))
        return max(1, min(wanted, ceil(problem.m / self.tile_m)))
