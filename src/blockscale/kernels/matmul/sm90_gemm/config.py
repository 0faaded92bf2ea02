"""How cuda/kernels/sm90_gemm.cu is shaped to a problem: the Config, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from blockscale.formats import Format
from blockscale.kernels.contract import Config as BaseConfig
from blockscale.problem import Problem

TILE_K = 64  # k of a stage
_LEAST_STEPS = 4  # k tiles of a part of a tile
_WHOLE_PARTS = 0.9  # of the places taken, and no cluster need have parts of two tiles


@dataclass(frozen=True)
class Config(BaseConfig):
    tile_m: int  # rows of x
    warpgroups: int  # that decode and multiply
    tiles_per_warp: int  # of 16 rows of w each
    stages: int
    cluster: int  # CTAs that share rows of x
    # Stream-K: tiles that fill no round of the clusters are split along k. How many tiles ragged
    # groups have, the device knows: it splits them where that takes less time.
    split: bool = False
    transposed: bool = False  # sums run over rows of w: n of a problem counts its columns
    k_parts: int = 1  # CTAs of a cluster that share the k of one tile
    # Codes are looked up there; those of 5 bits only where the table is known to be symmetric, and
    # in registers elsewhere.
    shared_table: bool = False
    # The mainloop unrolls half of the k whose scales stand together: less of it is beyond k.
    halved: bool = False

    def __str__(self) -> str:
        tile = f"{self.tile_m} x {self.weight_rows} x {TILE_K}"
        parts = [
            f"tile {tile} (m x n x k) by wgmma",
            f"{self.warpgroups} warpgroups and a producer",
            f"{self.stages} stages",
        ]
        if self.cluster > 1:
            parts.append(f"clusters of {self.cluster}")
        if self.k_parts > 1:
            parts.append(f"k split over a cluster of {self.k_parts}")
        if self.split:
            parts.append("stream-K")
        if self.shared_table:
            parts.append("table in shared memory")
        if self.transposed:
            parts.append("w transposed in registers")
        if self.halved:
            parts.append("turns of two stages")
        return ", ".join(parts)

    @property
    def threads(self) -> int:
        return 128 * (self.warpgroups + 1)

    @property
    def ctas(self) -> int:
        """Of a cluster."""
        return self.cluster * self.k_parts

    @property
    def weight_rows(self) -> int:
        """That a CTA takes, of gate and up together."""
        return 64 * self.tiles_per_warp * self.warpgroups

    def turn_k(self, format: Format) -> int:
        """Along k, that the mainloop unrolls: where scales stand together, or two stages."""
        return 2 * TILE_K if self.transposed or self.halved else 8 * format.block

    def tile_n(self, problem: Problem) -> int:
        """Columns of the output of a CTA."""
        return self.weight_rows // (2 if problem.gated else 1)

    def n_tiles(self, problem: Problem) -> int:
        """Along n, of a cluster."""
        return ceil(problem.n / (self.cluster * self.tile_n(problem)))

    def m_tiles(self, problem: Problem) -> int:
        """Along m, of all groups; of ragged ones as many as there can be."""
        if not problem.ragged:
            return problem.groups * ceil(problem.m / self.tile_m)
        busy = min(problem.groups, problem.m)
        return busy + (problem.m - busy) // self.tile_m

    def clusters(self, problem: Problem) -> int:
        """That are launched: each stays for all its tiles, or has one and shares its k."""
        places = max(problem.device.sms // self.cluster, 1)
        tiles = self.m_tiles(problem) * self.n_tiles(problem)
        if self.k_parts > 1:
            return tiles
        if self.split:
            parts = places // max(tiles, 1)  # of each tile
            if parts > 1 and parts * tiles >= _WHOLE_PARTS * places:
                places = parts * tiles
            tiles = tiles * ceil(problem.k / TILE_K) // _LEAST_STEPS
        return max(min(places, tiles), 1)

    def partial_floats(self, problem: Problem) -> int:
        """Of sums that CTAs leave for each other."""
        return self.clusters(problem) * self.cluster * self.tile_m * self.weight_rows

    def band(self, problem: Problem) -> int:
        """Tiles of x that are multiplied by the same weights at about the same time.

        Of the clusters that run at once, `band` have different rows of x for each rows of w: the
        bytes that they read together are fewest where both sides of that rectangle are as long.
        """
        x_bytes = 2 * self.tile_m
        w_bytes = self.cluster * self.weight_rows * problem.w_kind.format.bits_per_value / 8
        wanted = round(sqrt(problem.device.sms / self.cluster * w_bytes / x_bytes))
        return max(1, min(wanted, ceil(problem.m / self.tile_m)))
