"""How far kernels/matmul/sm90_gemm/cost.py errs: which facts of a launch the network of
`correction.json` is asked about. `bench.fit_correction gemm` fits it."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path

from blockscale.kernels.matmul.fragments.network import read_network
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.cost import tile_cycles, unit_cycles
from blockscale.problem import Problem

TABLE = Path(__file__).with_suffix(".json")


def correction(problem: Problem, config: Config, microseconds: float) -> float:
    """Measured over predicted time, as it is to be expected. Of ragged groups a prediction is a
    mean over what they may be like, and what it misses depends on what they are like."""
    network = read_network(TABLE)
    if problem.ragged or not network.knows(problem.device):
        return 1.0
    return network.factor(features(problem, config, microseconds))


def features(problem: Problem, config: Config, microseconds: float) -> list[float]:
    """Counts and bytes by their logarithms; ratios and flags as they are."""
    device, format = problem.device, problem.w_kind.format
    of_tile = tile_cycles(problem, config)
    products, decoding = unit_cycles(problem, config)
    clusters = config.clusters(problem)
    m_tiles = config.m_tiles(problem)
    tiles = m_tiles * config.n_tiles(problem)
    rounds, rows = tiles / clusters, problem.m
    ctas = clusters * config.ctas / device.sms
    logarithms = (
        config.tile_m,
        config.k_parts,
        tiles,
        rounds,
        ctas,
        rows,
        problem.n,
        problem.k,
        problem.groups,
        of_tile.tile,
        microseconds,
        problem.bytes,
        2 * problem.rows * problem.k / device.l2_bytes,
        2 * problem.rows * problem.n / device.l2_bytes,
    )
    return [
        *map(log2, logarithms),
        config.tiles_per_warp,
        config.stages,
        config.cluster,
        config.split,
        config.transposed,
        config.shared_table,
        problem.gated,
        format.element.bits,
        format.block,
        format.is_codebook,
        ceil(rounds) / rounds,
        decoding / products,
        of_tile.split / of_tile.tile,
        of_tile.sums / of_tile.tile,
        rows / (ceil(rows / config.tile_m) * config.tile_m),  # of tiles, what is full
        problem.n / (config.n_tiles(problem) * config.cluster * config.tile_n(problem)),
        m_tiles == 1,
    ]
