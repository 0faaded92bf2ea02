"""How cuda/kernels/sm100_mixed_gemm.cu is shaped to a problem: the Config, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.matmul.tmem import divide
from blockscale.layouts import DecodedMemory
from blockscale.problem import Problem

TILE_K = 64  # k of a stage
CTA_ROWS = 128  # of w, of gate and up together: the lanes of TMEM
DECODING = 8  # warps
THREADS = 32 * (1 + 1 + 4 + DECODING)  # that load, multiply, store and decode


@dataclass(frozen=True)
class Config(BaseConfig):
    tile_m: int  # rows of x: columns of an accumulator
    ctas: int  # 2: pairs of CTAs that multiply 256 rows of w by the same rows of x
    stages: int

    def __str__(self) -> str:
        pair = "pairs of CTAs, " if self.ctas == 2 else ""
        tile = f"{self.tile_m} x {CTA_ROWS * self.ctas} x {TILE_K}"
        return f"tile {tile} (m x n x k) by tcgen05, {pair}{self.stages} stages"

    def tile_n(self, problem: Problem) -> int:
        """Columns of the output of a CTA."""
        return CTA_ROWS // (2 if problem.gated else 1)

    @property
    def columns(self) -> DecodedMemory:
        """Of TMEM: the only place that divides them."""
        return DecodedMemory(self.tile_m, *divide(self.tile_m, TILE_K // 2, self.stages), TILE_K)

    def n_tiles(self, problem: Problem) -> int:
        """Along n, of a CTA or a pair."""
        return ceil(problem.n / (self.ctas * self.tile_n(problem)))

    def m_tiles(self, problem: Problem) -> int:
        """Along m, of all groups; of ragged ones as many as there can be."""
        if not problem.ragged:
            return problem.groups * ceil(problem.m / self.tile_m)
        busy = min(problem.groups, problem.m)
        return busy + (problem.m - busy) // self.tile_m

    def clusters(self, problem: Problem) -> int:
        """CTAs or pairs that are launched: each stays for all its tiles."""
        places = max(problem.device.sms // self.ctas, 1)
        return max(min(places, self.m_tiles(problem) * self.n_tiles(problem)), 1)

    def band(self, problem: Problem) -> int:
        """Tiles of x that are multiplied by the same weights at about the same time: the clusters
        that run at once read fewest bytes where both sides of their rectangle are as long."""
        x_bytes = 2 * self.tile_m
        w_bytes = self.ctas * CTA_ROWS * problem.w_kind.format.bits_per_value / 8
        wanted = round(sqrt(problem.device.sms / self.ctas * w_bytes / x_bytes))
        return max(1, min(wanted, ceil(problem.m / self.tile_m)))
