"""How the kernel is shaped for a problem, and the few shapes that are tried."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from blockscale.formats import E2M1, UE4M3, Format
from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.matmul.portable.encoding import Encoding, Variant, multiplies_codes
from blockscale.numerics import parse_activation
from blockscale.problem import Problem
from blockscale.runtime import Device

LARGEST_TILE_K = 256
_TILES_M = (16, 32, 64, 128)
_CTAS_PER_SM = 4  # wanted of few rows, so that enough bytes of weights are on their way
_MOST_SPLITS = 8
_NATIVE_TILE_N = 128  # rows that tcgen05 multiplies at a time


@dataclass(frozen=True)
class Config(BaseConfig):
    tile_m: int
    tile_n: int
    tile_k: int
    warps: int
    stages: int
    splits: int  # of k, each of which another CTA sums
    multiplied: str  # the dtype
    native: bool  # tensor cores take codes and block scales

    def __str__(self) -> str:
        how = "codes and scales by tl.dot_scaled" if self.native else f"{self.multiplied} by tl.dot"
        split = f", k split by {self.splits}" if self.splits > 1 else ""
        tile = f"tile {self.tile_m} x {self.tile_n} x {self.tile_k} (m x n x k)"
        return f"{tile} of {how}, {self.warps} warps, {self.stages} stages{split}"

    def scales_sums(self, format: Format) -> bool:
        """Whether sums of a block are scaled, and not each weight: float16 has no room for weights
        times their scales, but for those of NVFP4."""
        fits = (format.element, format.scale, format.tensor_scale) == (E2M1, UE4M3, "amax")
        return self.multiplied == "float16" and not fits


def variant(problem: Problem, config: Config) -> Variant:
    """What is compiled."""
    return Variant(
        w=Encoding.of(problem.w_kind),
        x=Encoding.of(problem.x_kind) if "@" in problem.x else None,
        tile_m=config.tile_m,
        tile_n=config.tile_n,
        tile_k=config.tile_k,
        splits=config.splits,
        multiplied=config.multiplied,
        scales_sums=config.scales_sums(problem.w_kind.format),
        native=config.native,
        gated=problem.gated,
        activation=parse_activation(problem.activation).name if problem.gated else "",
        group_slots=1 << problem.groups.bit_length() if problem.ragged else 0,
    )


def is_native(problem: Problem) -> bool:
    """Whether the device's tensor cores take codes and block scales of both operands, and Triton
    gives them these: for mma.sync it does so for compute capability 12.0 alone."""
    device = problem.device
    fits = "@" in problem.x and multiplies_codes(problem.w_kind.format, problem.x_kind.format)
    return fits and (device.tcgen05 or device.capability == (12, 0))


def rows_each(problem: Problem) -> float:
    """Rows of x of a matrix; of ragged groups, as many as one that has any has on average."""
    return problem.m / max(problem.busy_matrices, 1) if problem.ragged else problem.m


@lru_cache(maxsize=1024)
def configs_of(problem: Problem) -> tuple[Config, ...]:
    """The first runs untuned; tuning tries the others."""
    rows = rows_each(problem)
    tile_m = next((tile for tile in _TILES_M if rows <= tile), _TILES_M[-1])
    if is_native(problem):
        tiles = _native_tiles(tile_m, problem.device)
    else:
        tiles = _decoding_tiles(problem, tile_m)
    found = [_config(problem, *tile) for tile in tiles]
    return tuple(dict.fromkeys(found))


def _native_tiles(tile_m: int, device: Device) -> list[tuple[int, ...]]:
    """(tile_m, tile_n, tile_k, warps, stages) by what has room in shared memory."""
    stages = 4 if device.shared_per_cta > 128 << 10 else 2
    return [
        (tile_m, _NATIVE_TILE_N, 256, 4, stages),
        (tile_m, _NATIVE_TILE_N, 128, 4, stages),
        (tile_m, _NATIVE_TILE_N, 128, 8, stages),
    ]


def _decoding_tiles(problem: Problem, tile_m: int) -> list[tuple[int, ...]]:
    if (
        multiplied_dtype(problem) == "float32"
    ):  # by fused multiply-adds, whose operands fill registers
        return [(16, 32, 64, 4, 2), (16, 16, 128, 4, 2), (16, 64, 64, 8, 2)]
    if tile_m <= 32:
        return [
            (tile_m, 64, 256, 4, 3),
            (tile_m, 64, 128, 4, 4),
            (tile_m, 32, 256, 4, 4),
            (tile_m, 128, 128, 8, 3),
            (tile_m, 32, 128, 4, 5),
        ]
    return [(tile_m, 64, 128, 4, 3), (tile_m, 128, 128, 8, 2), (tile_m, 128, 64, 8, 3)]


def _config(
    problem: Problem, tile_m: int, tile_n: int, tile_k: int, warps: int, stages: int
) -> Config:
    multiplied = multiplied_dtype(problem)
    native = is_native(problem)
    config = Config(tile_m, tile_n, tile_k, warps, stages, 1, multiplied, native)
    block = problem.w_kind.format.block
    if config.scales_sums(problem.w_kind.format):
        tile_k = block
    elif not native:
        tile_k = max(tile_k, block, problem.x_kind.format.block if "@" in problem.x else 0)
    splits = _splits(problem, tile_m, tile_n, tile_k)
    return Config(tile_m, tile_n, tile_k, warps, stages, splits, multiplied, native)


def multiplied_dtype(problem: Problem) -> str:
    """Quantised x is decoded to bfloat16, which holds each of its values."""
    return "bfloat16" if "@" in problem.x else problem.x


def _splits(problem: Problem, tile_m: int, tile_n: int, tile_k: int) -> int:
    """So many that every SM has a few CTAs, where tiles alone are too few. Ragged groups have
    tiles enough, or rows too few to pay for a second kernel."""
    if problem.ragged:
        return 1
    tiles = -(-problem.m // tile_m) * -(-problem.n // tile_n) * max(problem.groups, 1)
    wanted = problem.device.sms * _CTAS_PER_SM // max(tiles, 1)
    steps = -(-problem.k // tile_k)
    return max(1, min(wanted, _MOST_SPLITS, steps // 4))
