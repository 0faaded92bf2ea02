"""How long cuda/kernels/stream.cu will take with a Config: a prediction from counted work.

A launch is rounds of CTAs on the busiest SM, and a CTA is a start, steps through k, and an end. A
step is bound by the issue slots of the SM, by the latency of one warp's own chain of instructions,
or by the copies it waits for; all steps together by DRAM, by the L2 that x comes from, and by the
tensor cores. Bounds overlap in part, so they are joined by a p-norm: the largest counts most.

The constants are fitted by `bench.fit_stream` to stored sweeps; docs/design/0007-choosing.md says
how well they choose on draws that were not used to fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from blockscale.kernels.matmul.fragments.groups import chance_of_more, routings, rows_each
from blockscale.kernels.matmul.stream.config import Config, decodes_x
from blockscale.kernels.matmul.stream.constants import ALGORITHMS, SHARED, Algorithm, Shared
from blockscale.problem import Problem
from blockscale.runtime import Device

_ALIKE = {"e3m2": "e2m3", "e5m2": "e4m3"}  # elements that take as long to decode
_SCHEDULERS = 4  # of an SM
_STEP = 16  # k of one mma
_COPIED = 512  # bytes that a warp copies at a time
_STORED = 64  # bytes of shared memory that sums take a cycle for
_BETWEEN = 14  # bytes of another SM's shared memory that come in a cycle


class Rates(NamedTuple):
    """How fast a GPU is: all that a prediction needs to know of it beside its number of SMs."""

    dram: float  # bytes in a microsecond, of a large read
    l2: float  # the same of its L2
    cycles: float  # of an SM in a microsecond
    products: int  # of 16-bit numbers by the tensor cores of an SM, in a cycle


_READ = 4.42 / 4.8  # of the DRAM rate of a data sheet, that a large read reached on an H200
# Bytes of x that an SM gets from the L2 in a cycle: assumed, so that the fitted shares of it have a
# unit. No GPU's was measured.
_L2 = 5.5e6 / (132 * 1830)


@lru_cache(maxsize=16)
def rates_of(device: Device) -> Rates:
    """The constants were fitted on an H200; another GPU is predicted by its clocks and rates."""
    return Rates(
        dram=device.dram_bytes_per_s * _READ / 1e6,
        l2=device.sms * device.sm_hz * _L2 / 1e6,
        cycles=device.sm_hz / 1e6,
        products=device.mma_flops_per_cycle // 2,
    )


class Work(NamedTuple):
    """What a launch does, counted: all that a prediction needs to know of problem and config."""

    algorithm: str  # "few", "mma" or "wgmma"
    element: str
    table: bool  # codes are looked up in shared memory
    tiles: int
    tile_m: int
    rows: float  # of x that a CTA has
    n_warps: int
    k_warps: int
    stages: int
    tile_k: int
    ctas: float
    resident: int  # CTAs on the busiest SM at a time
    rounds: float  # of them
    turns: float  # over rows of x
    crowded: float  # chance that some ragged group takes one more
    stages_of_k: int  # of a CTA's k
    splits: int
    k: int
    weight_rows: int
    weight_bytes: float  # of all
    bits: int  # of a code
    block: int  # codes that share a scale
    coded: bool  # x is decoded on its way into shared memory
    gated: bool
    ragged: bool


class _Facts(NamedTuple):
    """Of a problem, whatever its config."""

    element: str
    processors: int
    matrices: float  # of weights that have rows
    rows: float  # of x, of each of them
    weight_bytes: float  # of all
    bits: int
    block: int


@lru_cache(maxsize=16)
def _facts(problem: Problem) -> _Facts:
    format, matrices = problem.w_kind.format, problem.busy_matrices
    weights = matrices * (2 if problem.gated else 1) * problem.n * problem.k
    return _Facts(
        element=_ALIKE.get(format.element.name, format.element.name),
        processors=problem.device.sms,
        matrices=matrices,
        rows=rows_each(problem),
        weight_bytes=weights * (format.element.bits / 8 + 1 / format.block),
        bits=format.element.bits,
        block=format.block,
    )


def count(problem: Problem, config: Config) -> Work:
    element, processors, matrices, rows, weight_bytes, bits, block = _facts(problem)
    every = config.output_tiles(problem) * config.splits * matrices
    resident = min(config.ctas_per_sm, max(1, ceil(every / processors)))
    turns = max(1, ceil(rows / config.tile_m))
    return Work(
        algorithm="wgmma" if config.wgmma else "few" if config.tile_m < 8 else "mma",
        element=element,
        table=config.shared_table,
        tiles=config.tiles_per_warp,
        tile_m=config.tile_m,
        rows=min(config.tile_m, max(rows, 1)),
        n_warps=config.n_warps,
        k_warps=config.k_warps,
        stages=config.stages,
        tile_k=config.tile_k,
        ctas=every,
        resident=resident,
        rounds=every / (processors * resident),
        turns=turns,
        crowded=chance_of_more(problem, turns * config.tile_m) if problem.ragged else 0.0,
        stages_of_k=ceil(ceil(problem.k / config.tile_k) / config.splits),
        splits=config.splits,
        k=problem.k,
        weight_rows=config.weight_rows,
        weight_bytes=weight_bytes,
        bits=bits,
        block=block,
        coded=decodes_x(problem, config),
        gated=problem.gated,
        ragged=problem.ragged,
    )


@dataclass(frozen=True)
class Cost:
    """Microseconds, and what they are made of."""

    microseconds: float
    bounds: dict[str, float]  # each alone

    @property
    def bound_by(self) -> str:
        return max(self.bounds, key=lambda name: self.bounds[name])


def predict(work: Work, algorithm: Algorithm, shared: Shared, rates: Rates) -> Cost:
    rounds = work.rounds
    if rounds <= 1:
        rounds = 1.0
    else:  # CTAs drift apart, so that a last round that is not full costs less after many
        whole = ceil(rounds)
        rounds += (whole - rounds) * min(1.0, 2 * algorithm.tail / whole)
    passes = rounds * work.turns
    x_bytes = 2 * work.rows * work.k / work.splits
    warps = work.n_warps * work.k_warps
    cycles = _cycles_of_stage(work, algorithm, shared) / rates.cycles
    steps = ceil(work.stages_of_k / work.k_warps)
    ahead = work.stages - (0.5 if work.algorithm == "wgmma" else 1)
    bounds = {
        "issue": passes
        * work.stages_of_k
        / work.k_warps
        * cycles
        * ceil(work.resident * warps / _SCHEDULERS),
        "latency": passes * steps * (cycles * algorithm.chain + algorithm.meeting / rates.cycles),
        "copies": passes * steps * algorithm.load / ahead / rates.cycles,
    }
    of_steps = _norm(bounds.values(), shared.steps_overlap)
    weights = work.weight_rows * work.k / work.splits
    bounds |= {
        "DRAM": work.turns * work.weight_bytes / rates.dram,
        "L2": work.turns * work.ctas * x_bytes / (rates.l2 * algorithm.l2),
        "tensor cores": passes
        * work.resident
        * weights
        * max(work.tile_m, 8)
        / rates.products
        / rates.cycles,
    }
    of_all = _norm((of_steps, bounds["DRAM"], bounds["L2"], bounds["tensor cores"]), shared.overlap)
    bounds["start and end"] = _ends(work, algorithm, shared, rates, rounds)
    return Cost(of_all + bounds["start and end"], bounds)


def _cycles_of_stage(work: Work, algorithm: Algorithm, shared: Shared) -> float:
    """Issue slots that a warp takes for a stage."""
    decode = (algorithm.looked_up if work.table else algorithm.decode)[work.element]
    tile = decode + algorithm.columns * max(1, work.tile_m / 8)
    cycles = work.tile_k / _STEP * work.tiles * tile + algorithm.stage
    if work.algorithm == "wgmma":
        return cycles
    # Warps copy x themselves, and wait for each other after each stage.
    copy = shared.copy_x + (shared.decode_x if work.coded else 0)
    cycles += copy * 2 * work.rows * work.tile_k / _COPIED / work.n_warps
    return cycles * (1 + shared.meeting * (work.n_warps - 1))


def _ends(work: Work, algorithm: Algorithm, shared: Shared, rates: Rates, rounds: float) -> float:
    """All that CTAs do before their first stage and after their last."""
    start = algorithm.start
    if work.rounds <= 0.5:
        start *= 1 - algorithm.hidden  # idle SMs have a place for every CTA of the next kernel
    sums = work.tile_m * work.weight_rows
    outputs = work.resident * sums / work.splits
    each = start + shared.warp * work.resident * work.n_warps * work.k_warps
    each += shared.reduce * work.k_warps * 4 * sums / _STORED / rates.cycles
    if work.splits > 1:
        others = 4 * sums * (work.splits - 1) / work.splits
        each += shared.cluster + shared.cluster_sums * others / _BETWEEN / rates.cycles
    each += outputs * (shared.output + (shared.activation if work.gated else 0))
    total = rounds * work.turns * each
    if work.table:  # the first time while the first stages come
        total += shared.fill_table + shared.refill_table * (rounds - 1)
    total += shared.find_group if work.ragged else 0
    return total + (shared.gate if work.gated else 0)


def _norm(times: Iterable[float], p: float) -> float:
    return float(sum(each**p for each in times) ** (1 / p))


def cost(problem: Problem, config: Config) -> Cost:
    """Where all groups of rows are alike: `unevenness` says what it is to be multiplied by."""
    return _predict(problem, count(problem, config))


def _predict(problem: Problem, work: Work) -> Cost:
    return predict(work, ALGORITHMS[work.algorithm], SHARED, rates_of(problem.device))


def unevenness(problem: Problem, config: Config) -> float:
    """The mean time of what ragged groups may be like, over that of groups that are alike. Groups
    with more rows than a tile take several turns: on average where CTAs follow each other on an SM,
    and as many as the largest where all run at once."""
    if not problem.ragged:
        return 1.0
    work = count(problem, config)
    mean = 0.0
    for each in routings(problem, config.tile_m):
        turns = max(each.turns, each.most / max(work.rounds, 1.0))
        mean += each.chance * _predict(problem, work._replace(turns=turns)).microseconds
    return mean / _predict(problem, work).microseconds
