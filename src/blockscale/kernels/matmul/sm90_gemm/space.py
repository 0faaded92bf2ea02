"""Every Config of the Hopper GEMM for a problem: what can run, less what was never seen to pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from blockscale.kernels.matmul.fragments.clusters import cluster_places
from blockscale.kernels.matmul.fragments.tiled import TILE_M
from blockscale.kernels.matmul.sm90_gemm.config import TILE_K, Config
from blockscale.kernels.matmul.sm90_gemm.shared_memory import holds_sums, shared_bytes
from blockscale.problem import Problem

_MOST_SUMS = 128  # registers of a thread; more would spill
_LEAST_SHARED = 192  # rows of x from which on sharing them in a cluster was seen to pay
# Rows of x up to which codebooks of 2 and 4 bits are looked up faster in shared memory than in
# registers, by 5 to 9% on average. With more, decoding is hidden either way, and stages are missed.
_MOST_LOOKED_UP = 192
_STAGES = (6, 5, 4, 3)
_K_PARTS = (2, 3, 4, 8)  # clusters of 5 to 7 find few places
_LEAST_PART = 4  # k tiles of a CTA
_LONGEST_SPLIT = 1 << 22  # k: parts of tiles are counted in 32 bits
_STATIC_SHARED = 1024  # bytes that the kernel has for itself, at the most


def every_config(problem: Problem, transposed: bool = False) -> Iterator[Config]:
    for rows, tiles, cluster in product(TILE_M, (1, 2), (1, 2)):
        if rows // 2 * tiles > _MOST_SUMS or (cluster > 1 and rows < _LEAST_SHARED):
            continue
        for table in _tables(problem, transposed, rows):
            config = Config(rows, 2, tiles, 0, cluster, transposed=transposed, shared_table=table)
            if stages := _most_stages(config, problem):
                for turns in _turns(problem, replace(config, stages=stages)):
                    yield from _with_splits(problem, turns)


def _tables(problem: Problem, transposed: bool, rows: int) -> tuple[bool, ...]:
    """Whether a codebook stands in shared memory. 5 bits always were faster there, on an H200, and
    3 bits as fast in registers. Of 2 and 4 bits every second step is looked up there: half of the
    warps, where weights are transposed. Gradients do not know that a table is symmetric."""
    format = problem.w_kind.format
    if transposed or not format.is_codebook or format.element.bits == 3:
        return (False,)
    if format.element.bits == 5:
        return (True,)
    return (False, True) if rows <= _MOST_LOOKED_UP else (False,)


def _turns(problem: Problem, whole: Config) -> tuple[Config, ...]:
    """Turns are halved only where whole ones have more that is beyond k."""
    halved = replace(whole, halved=True)
    lengths = (each.turn_k(problem.w_kind.format) for each in (whole, halved))
    multiplied, less = (ceil(problem.k / length) * length for length in lengths)
    return (whole, halved) if less < multiplied else (whole,)


def as_compiled(config: Config, problem: Problem, symmetric: bool) -> Config:
    """What runs by a table that is symmetric, or any: of 5 bits, any has no use for the room."""
    if symmetric or problem.w_kind.format.element.bits < 5 or not config.shared_table:
        return config
    config = replace(config, shared_table=False)
    return replace(config, stages=_most_stages(config, problem))


def _most_stages(config: Config, problem: Problem) -> int:
    """That fit: fewer hide less latency. 0 where too few do."""
    room = problem.device.shared_per_cta - _STATIC_SHARED
    fitting = (n for n in _STAGES if shared_bytes(replace(config, stages=n), problem) <= room)
    return next(fitting, 0)


def _with_splits(problem: Problem, config: Config) -> Iterator[Config]:
    """Whole tiles; tiles split along k through memory; or by clusters, all resident at once."""
    yield config
    if problem.k <= _LONGEST_SPLIT:
        yield replace(config, split=True)
    if problem.ragged or config.cluster > 1:
        return
    tiles = config.m_tiles(problem) * config.n_tiles(problem)
    for parts in _K_PARTS:
        parted = replace(config, k_parts=parts)
        long = problem.k >= parts * _LEAST_PART * TILE_K
        if long and tiles <= cluster_places(problem.device, parts) and holds_sums(parted, problem):
            yield parted
