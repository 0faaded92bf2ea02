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

from blockscale.kernels.matmul.stream.constants import ALGORITHMS, SHARED, Algorithm, Shared
from blockscale.kernels.matmul.stream.work import Work
from blockscale.runtime import Device

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


@dataclass(frozen=True)
class Cost:
    """Microseconds, and what they are made of."""

    microseconds: float
    bounds: dict[str, float]  # each alone

    @property
    def bound_by(self) -> str:
        return max(self.bounds, key=lambda name: self.bounds[name])


def cost(work: Work) -> Cost:
    """Where all groups of rows are alike: `unevenness` says what it is to be multiplied by."""
    algorithm = ALGORITHMS[work.config.algorithm]
    return predict(work, algorithm, SHARED, rates_of(work.facts.device))


def predict(work: Work, algorithm: Algorithm, shared: Shared, rates: Rates) -> Cost:
    config, k, rounds = work.config, work.facts.k, work.rounds
    if rounds <= 1:
        rounds = 1.0
    else:  # CTAs drift apart, so that a last round that is not full costs less after many
        whole = ceil(rounds)
        rounds += (whole - rounds) * min(1.0, 2 * algorithm.tail / whole)
    passes = rounds * work.turns
    x_bytes = 2 * work.rows * k / config.splits
    warps = config.n_warps * config.k_warps
    cycles = _cycles_of_stage(work, algorithm, shared) / rates.cycles
    steps = ceil(work.stages_of_k / config.k_warps)
    ahead = config.stages - (0.5 if config.wgmma else 1)
    bounds = {
        "issue": passes
        * work.stages_of_k
        / config.k_warps
        * cycles
        * ceil(work.resident * warps / _SCHEDULERS),
        "latency": passes * steps * (cycles * algorithm.chain + algorithm.meeting / rates.cycles),
        "copies": passes * steps * algorithm.load / ahead / rates.cycles,
    }
    of_steps = _norm(bounds.values(), shared.steps_overlap)
    weights = config.weight_rows * k / config.splits
    bounds |= {
        "DRAM": work.turns * work.weight_bytes / rates.dram,
        "L2": work.turns * work.ctas * x_bytes / (rates.l2 * algorithm.l2),
        "tensor cores": passes
        * work.resident
        * weights
        * max(config.tile_m, 8)
        / rates.products
        / rates.cycles,
    }
    of_all = _norm((of_steps, bounds["DRAM"], bounds["L2"], bounds["tensor cores"]), shared.overlap)
    bounds["start and end"] = _ends(work, algorithm, shared, rates, rounds)
    return Cost(of_all + bounds["start and end"], bounds)


def _cycles_of_stage(work: Work, algorithm: Algorithm, shared: Shared) -> float:
    """Issue slots that a warp takes for a stage."""
    config = work.config
    decode = (algorithm.looked_up if config.shared_table else algorithm.decode)[work.facts.element]
    tile = decode + algorithm.columns * max(1, config.tile_m / 8)
    cycles = config.tile_k / _STEP * config.tiles_per_warp * tile + algorithm.stage
    if config.wgmma:
        return cycles
    # Warps copy x themselves, and wait for each other after each stage.
    copy = shared.copy_x + (shared.decode_x if work.coded else 0)
    cycles += copy * 2 * work.rows * config.tile_k / _COPIED / config.n_warps
    return cycles * (1 + shared.meeting * (config.n_warps - 1))


def _ends(work: Work, algorithm: Algorithm, shared: Shared, rates: Rates, rounds: float) -> float:
    """All that CTAs do before their first stage and after their last."""
    config = work.config
    start = algorithm.start
    if work.rounds <= 0.5:
        start *= 1 - algorithm.hidden  # idle SMs have a place for every CTA of the next kernel
    sums = config.tile_m * config.weight_rows
    outputs = work.resident * sums / config.splits
    each = start + shared.warp * work.resident * config.n_warps * config.k_warps
    each += shared.reduce * config.k_warps * 4 * sums / _STORED / rates.cycles
    if config.splits > 1:
        others = 4 * sums * (config.splits - 1) / config.splits
        each += shared.cluster + shared.cluster_sums * others / _BETWEEN / rates.cycles
    each += outputs * (shared.output + (shared.activation if work.facts.gated else 0))
    total = rounds * work.turns * each
    if config.shared_table:  # the first time while the first stages come
        total += shared.fill_table + shared.refill_table * (rounds - 1)
    total += shared.find_group if work.facts.ragged else 0
    return total + (shared.gate if work.facts.gated else 0)


def _norm(times: Iterable[float], p: float) -> float:
    return float(sum(each**p for each in times) ** (1 / p))


def unevenness(work: Work) -> float:
    """The mean time of what ragged groups may be like, over that of groups that are alike.

    Groups with more rows than a tile take several turns: on average where CTAs follow each other on
    an SM, and as many as the largest where all run at once. And where one group more has rows than
    on average, the CTAs of a launch may take one round more.
    """
    if not work.facts.ragged:
        return 1.0
    mean = 0.0
    for each in work.facts.routings(work.config.tile_m):
        turns = max(each.turns, each.most / max(work.rounds, 1.0))
        for chance, busy in work.facts.busy_counts:
            mean += each.chance * chance * cost(work.of_call(busy, turns)).microseconds
    return mean / cost(work).microseconds
