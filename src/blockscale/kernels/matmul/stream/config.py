"""How cuda/kernels/stream.cu is shaped to a problem: the Config, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.matmul.stream.facts import Facts


@dataclass(frozen=True)
class Config(BaseConfig):
    tile_m: int  # rows of x that a CTA multiplies at a time
    tiles_per_warp: int  # of 16 rows of w each
    n_warps: int  # warps along n, each with tiles of its own
    k_warps: int  # warps that share tiles and take every k_warps-th stage
    stages: int
    tile_k: int  # k of a stage
    ctas_per_sm: int  # that an SM holds at a time
    splits: int  # split-K: CTAs that share the k of an output, form a cluster and reduce over DSMEM
    wgmma: bool = False  # four warps multiply together
    shared_table: bool = False  # codes are looked up there; 5 bits only by a symmetric table

    def __str__(self) -> str:
        tile = f"{self.tile_m} x {self.weight_rows} x {self.tile_k}"
        parts = [
            f"tile {tile} (m x n x k) by {'wgmma' if self.wgmma else 'mma'}",
            f"{self.n_warps} x {self.k_warps} warps (n x k)",
            f"{self.stages} stages",
            f"{self.ctas_per_sm} CTA{'s' if self.ctas_per_sm > 1 else ''} per SM",
        ]
        if self.splits > 1:
            parts.append(f"split-K {self.splits} in a cluster")
        if self.shared_table:
            parts.append("table in shared memory")
        return ", ".join(parts)

    @property
    def algorithm(self) -> str:
        """The mainloop: cuda/gemm/wgmma.cuh, mma_few.cuh or mma.cuh."""
        return "wgmma" if self.wgmma else "few" if self.tile_m < 8 else "mma"

    @property
    def threads(self) -> int:
        return 32 * self.n_warps * self.k_warps

    @property
    def weight_rows(self) -> int:
        """That a CTA takes, of gate and up together."""
        return 16 * self.tiles_per_warp * self.n_warps

    def output_tiles(self, facts: Facts) -> int:
        return -(-facts.outputs // self.weight_rows)
