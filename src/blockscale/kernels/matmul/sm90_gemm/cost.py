"""How long cuda/kernels/sm90_gemm.cu should take: rounds of tiles, each bound by what is slowest.

Constants are fitted to a stored sweep by bench.fit_gemm and judged on another. Decoding and
multiplying overlap in part, since they share the registers' bandwidth and the power that the GPU
may take: the cycles of a unit, 64 rows of w by 64 k, are a p-norm of both. So is the time of a
product, of what SMs and what memory take.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd
from typing import NamedTuple

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.fragments.groups import routings
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.problem import Problem

# Microseconds from the end of the kernel before to the first product, by time stamps in the kernel:
# sweeps of large problems cannot tell it from the cycles of a tile.
_START = 1.0
_DRAM = 0.85  # of the data sheet's rate
# Cycles of decoding that a unit of halved turns has more, by times of both kinds side by side: with
# tiles of 64 and 128 rows they take 4 to 7% longer.
_HALVED = 25.0


@dataclass(frozen=True)
class Constants:
    multiply: float  # cycles of a unit's products, of those that the data sheet's rate gives
    overlap: float  # of products with decoding: exponent of a p-norm, 1 where there is none
    decode: float  # cycles of a unit, of a float of 4 bits
    decode_table: float  # more, of a codebook in registers
    decode_shared: float  # more, of one in shared memory
    decode_signs: float  # more, of one of 5 bits there
    decode_bits: float  # more, for each bit beyond 4
    transpose: float  # more, of weights that are transposed
    transpose_table: float  # more, of a codebook, whose steps share words
    stage: float  # cycles in which warps wait for a stage and give it back
    tile: float  # cycles of a tile: filling the ring
    activate: float  # cycles for 1,024 results of gate and up
    splitting: float  # times the cycles of a tile, in kernels with the code that splits tiles
    alone: float  # and once more, where no cluster shares x, since parts are each at another k
    split: float  # cycles of leaving sums and adding them, once
    split_part: float  # cycles of adding one part, which waits for the one before
    split_sums: float  # cycles for 1,024 sums of it
    join: float  # cycles in which the CTAs of a cluster meet and send sums, for each but one
    join_sums: float  # cycles for 1,024 sums that a CTA of a cluster sends, or adds
    beside: float  # memory beside all else: exponent of a p-norm
    again: float  # of the bytes that parts of tiles read, as far as the cache does not hold them
    cache: float  # of the L2 cache, that holds rows of x


CONSTANTS = Constants(
    multiply=1.065,
    overlap=1.784,
    decode=162,
    decode_table=44.16,
    decode_shared=5.642,
    decode_signs=62.01,
    decode_bits=12.62,
    transpose=130.7,
    transpose_table=59.8,
    stage=33.88,
    tile=2869,
    activate=156.3,
    splitting=1.019,
    alone=1.03,
    split=2614,
    split_part=626.1,
    split_sums=76.89,
    join=860.8,
    join_sums=176.8,
    beside=4.456,
    again=1.095,
    cache=0.2318,
)


class TileCycles(NamedTuple):
    """What tiles take; cuda/gemm/tile_cycles.cuh is told it where groups are ragged."""

    tile: float
    split: float  # of a part more than tiles are, of leaving its sums and adding them, once
    sums: float  # of adding one part's

    def whole(self, tiles: int, clusters: int) -> float:
        return ceil(tiles / clusters) * self.tile

    def in_parts(self, tiles: int, clusters: int) -> float:
        crosses = clusters % tiles > 0
        others = clusters // tiles + 1 if crosses else clusters // tiles - 1  # parts of a tile
        return tiles / clusters * self.tile + self.split + self.sums * others


def cost(problem: Problem, config: Config, constants: Constants = CONSTANTS) -> Prediction:
    """Of ragged groups the mean of what they may be like; bound by what the likeliest are."""
    n_tiles = config.n_tiles(problem)
    found = [
        (each.chance, cost_of_tiles(problem, config, each.tiles * n_tiles, constants))
        for each in routings(problem, config.tile_m)
    ]
    _, likeliest = found[0]
    mean = sum(chance * each.microseconds for chance, each in found)
    return likeliest._replace(microseconds=mean)


def tile_cycles(problem: Problem, config: Config, c: Constants = CONSTANTS) -> TileCycles:
    """Of a tile of a cluster, or of a CTA's part of it."""
    turn = config.turn_k(problem.w_kind.format)
    steps = ceil(ceil(problem.k / turn) / config.k_parts) * (turn // TILE_K)
    units = steps * config.warpgroups * config.tiles_per_warp
    products, decoding = unit_cycles(problem, config, c)
    unit = (products**c.overlap + decoding**c.overlap) ** (1 / c.overlap)
    ends = c.tile
    if problem.gated:
        ends += c.activate * config.tile_m * config.tile_n(problem) / 1024
    tile = units * unit + steps * c.stage + ends
    sums = config.tile_m * config.weight_rows / 1024
    if config.k_parts > 1:
        others = config.k_parts - 1
        tile += c.join * others + c.join_sums * sums * others / config.k_parts
    if config.split:
        tile *= c.splitting * (c.alone if config.cluster == 1 else 1.0)
    return TileCycles(tile, ends + c.split, c.split_part + c.split_sums * sums)


def unit_cycles(problem: Problem, config: Config, c: Constants = CONSTANTS) -> tuple[float, float]:
    """Of products, and of decoding, each by itself."""
    format = problem.w_kind.format
    flops = 2.0 * 64 * config.tile_m * TILE_K
    decoding = c.decode + c.decode_bits * (format.element.bits - 4)
    if config.shared_table:
        decoding += c.decode_shared + (c.decode_signs if format.element.bits == 5 else 0.0)
    elif format.is_codebook:
        decoding += c.decode_table
    if config.halved:
        decoding += _HALVED
    if config.transposed:
        decoding += c.transpose + (c.transpose_table if format.is_codebook else 0.0)
    return flops / problem.device.mma_flops_per_cycle * c.multiply, decoding


def cost_of_tiles(
    problem: Problem, config: Config, tiles: int, c: Constants = CONSTANTS
) -> Prediction:
    """With so many tiles of the output, of a cluster each."""
    device, clusters = problem.device, config.clusters(problem)
    of_tile = tile_cycles(problem, config, c)
    cycles, waits = of_tile.whole(tiles, clusters), False

    def reading(bytes: float) -> float:
        return bytes / (device.dram_bytes_per_s * _DRAM) * device.sm_hz

    if config.split and tiles % clusters:
        parted = of_tile.in_parts(tiles, clusters)
        if parted < cycles or not problem.ragged:  # else the device splits none
            share, bytes = _read_again(problem, config, tiles, clusters, c)
            again = reading(c.again * bytes)
            waits = again > parted * share
            cycles = parted * (1 - share) + _beside(parted * share, again, c)
    taken = _START + _beside(cycles, reading(problem.bytes), c) / device.sm_hz * 1e6
    if waits or reading(problem.bytes) > cycles:
        return Prediction(taken, "DRAM")
    products, decoding = unit_cycles(problem, config, c)
    return Prediction(taken, "tensor cores" if products > decoding else "decoding")


def _beside(computing: float, reading: float, c: Constants) -> float:
    joined: float = (computing**c.beside + reading**c.beside) ** (1 / c.beside)
    return joined


def _read_again(
    problem: Problem, config: Config, tiles: int, clusters: int, c: Constants
) -> tuple[float, float]:
    """Which share of the tiles is split, and the bytes of x that are read for them. Clusters with
    whole tiles go along k side by side and find each other's operands in the cache. With parts of
    tiles only those are side by side whose parts begin at the same k: unless half of all are, each
    reads its own rows of x, and from memory what the cache does not hold. Sweeps show nothing like
    it for w, whose rows neighbours read soon after each other."""
    left = tiles % clusters
    parted = left if tiles < clusters else left + clusters
    apart = max(0.0, 1 - 2 * gcd(parted, clusters) / clusters)
    missed = max(0.0, 1 - c.cache * problem.device.l2_bytes / (2 * problem.rows * problem.k))
    return parted / tiles, parted * 2 * problem.k * config.tile_m * missed * apart
