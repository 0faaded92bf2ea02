"""How long cuda/kernels/sm90_gemm.cu should take: rounds of tiles, each bound by what is slowest.

Constants are fitted to a stored sweep by bench.fit_gemm and judged on another, but for `join` and
`join_sums`, which were estimated and choose better than fitted ones. Decoding and
multiplying overlap in part, since they share the registers' bandwidth and the power that the GPU
may take: the cycles of a unit, 64 rows of w by 64 k, are a p-norm of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.fragments.groups import routings
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.problem import Problem

# Microseconds from the end of the kernel before to the first product, by time stamps in the kernel:
# sweeps of large problems cannot tell it from the cycles of a tile.
_START = 1.0
_DRAM = 0.85  # of the data sheet's rate


@dataclass(frozen=True)
class Constants:
    multiply: float  # cycles of a unit's products, of those that the data sheet's rate gives
    overlap: float  # of products with decoding: exponent of a p-norm, 1 where there is none
    decode: float  # cycles of a unit, of a float of 4 bits
    decode_table: float  # more, of a codebook
    decode_bits: float  # more, for each bit beyond 4
    transpose: float  # more, of weights that are transposed
    transpose_table: float  # more, of a codebook, whose steps share words
    tile: float  # cycles of a tile: filling the ring
    activate: float  # cycles for 1,024 results of gate and up
    split: float  # cycles of leaving sums and adding them, once
    split_sums: float  # cycles for 1,024 sums
    join: float  # cycles in which the CTAs of a cluster meet and send sums, once
    join_sums: float  # cycles for 1,024 sums that a CTA sends, or adds
    crossing: float  # cycles more, where a cluster has parts of two tiles
    again: float  # of the time in which memory gives what the cache does not hold
    cache: float  # of the L2 cache, that holds operands


CONSTANTS = Constants(
    multiply=1.093,
    overlap=1.952,
    decode=204.6,
    decode_table=42.79,
    decode_bits=8.33,
    transpose=113.5,
    transpose_table=37,
    tile=3625,
    activate=234.1,
    split=8792,
    split_sums=94.18,
    join=1500,
    join_sums=120,
    crossing=4445,
    again=0.07392,
    cache=0.6429,
)


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


def cost_of_tiles(
    problem: Problem, config: Config, tiles: int, c: Constants = CONSTANTS
) -> Prediction:
    """With so many tiles of the output, of a cluster each."""
    device, format = problem.device, problem.w_kind.format
    clusters = config.clusters(problem)
    turn = config.turn_k(format)
    steps = ceil(ceil(problem.k / turn) / config.k_parts) * (turn // TILE_K)
    products = 2.0 * 64 * config.tile_m * TILE_K / device.mma_flops_per_cycle * c.multiply
    decoding = c.decode + c.decode_bits * (format.element.bits - 4)
    decoding += c.decode_table if format.is_codebook else 0.0
    if config.transposed:
        decoding += c.transpose + (c.transpose_table if format.is_codebook else 0.0)
    units = steps * config.warpgroups * config.tiles_per_warp
    unit = (products**c.overlap + decoding**c.overlap) ** (1 / c.overlap)
    tile = units * unit + c.tile
    if problem.gated:
        tile += c.activate * config.tile_m * config.tile_n(problem) / 1024
    sums = config.tile_m * config.weight_rows / 1024
    if config.k_parts > 1:
        tile += c.join + c.join_sums * sums * (config.k_parts - 1) / config.k_parts
    if config.split and tiles % clusters:
        parts = max(1.0, clusters / tiles)  # of a tile, to be added
        cycles = tiles / clusters * tile + c.split + c.split_sums * sums * parts
        cycles += c.crossing if clusters % tiles else 0.0
    else:
        cycles = ceil(tiles / clusters) * tile
    computing = cycles / device.sm_hz * 1e6
    again = _read_again(problem, config, tiles, clusters, c)
    computing += c.again * again / device.dram_bytes_per_s * 1e6
    reading = problem.bytes / (device.dram_bytes_per_s * _DRAM) * 1e6
    if reading > computing:
        return Prediction(_START + reading, "DRAM")
    return Prediction(_START + computing, "tensor cores" if products > decoding else "decoding")


def _read_again(
    problem: Problem, config: Config, tiles: float, clusters: int, c: Constants
) -> float:
    """Bytes. Clusters with whole tiles go along k side by side and find each other's operands in
    the cache; with parts of tiles each is at another k, and what the cache does not hold comes
    from memory for each of them."""
    left = tiles % clusters
    if not config.split or not left:
        return 0.0
    parted = left if tiles < clusters else left + clusters
    w_row = problem.k * problem.w_kind.format.bits_per_value / 8
    tile = 2 * problem.k * config.tile_m + config.cluster * config.weight_rows * w_row
    held = c.cache * problem.device.l2_bytes / (2 * problem.rows * problem.k + problem.n * w_row)
    return parted * tile * max(0.0, 1 - held)
