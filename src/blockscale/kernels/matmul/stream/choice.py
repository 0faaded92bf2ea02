"""Which Configs of cuda/kernels/stream.cu suit a problem: all legal ones, by predicted time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.fragments.groups import rows_each
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.correction import correction, was_measured
from blockscale.kernels.matmul.stream.cost import Cost, cost, count, unevenness
from blockscale.kernels.matmul.stream.exceptions import exception
from blockscale.kernels.matmul.stream.space import MMA_ROWS, WGMMA_ROWS, every_config, is_legal
from blockscale.problem import Problem

_KEPT = 40  # worth measuring: on an H200 the best of a sweep was nearly always among the first 20
# Times the least predicted time, and configs at most. Only these are corrected, which takes longer
# than predicting. In one problem of 1,213 of the sweeps, the best of these was more than 10% slower
# than the best of all; with 1.15 and 80, in four.
_LIKELY, _MOST_LIKELY = 1.2, 120
# Rows of a ragged group that has any, on average: no sweep that the correction learned from had
# more, and it would make one up. Measured over predicted time with more of them is this in the
# median, of products and of gated ones (87 and 16 timings of h200_skewed_draw1 and draw2 and
# h200_experts_draw1 that are near the Hopper GEMM's, where it matters).
_SWEPT_ROWS, _BEYOND_SWEEPS = 16, {False: 1.015, True: 0.97}


def stream_configs(problem: Problem) -> tuple[Config, ...]:
    """The best first; none where nothing fits into shared memory.

    Problems that no choice depends on are told apart no further, since a choice takes tens of
    milliseconds: numbers of rows that take the same tile of x, biases, and what comes out.
    """
    return _ranked(representative(problem))


def has_config(problem: Problem) -> bool:
    """Whether there is one, which is known long before the best is."""
    return next(every_config(representative(problem)), None) is not None


def representative(problem: Problem) -> Problem:
    """Of all problems that get the same choice."""
    return replace(
        problem,
        m=_rounded(problem),
        bias=False,
        out="bfloat16",
        activation="silu" if problem.gated else "",
    )


@lru_cache(maxsize=4096)
def _ranked(problem: Problem) -> tuple[Config, ...]:
    ranked = ranked_by_prediction(problem)
    known = exception(problem)
    if known is not None and is_legal(known.config, problem):
        ranked = list(dict.fromkeys((known.config, *ranked)))
    return tuple(ranked)


def ranked_by_prediction(problem: Problem) -> list[Config]:
    """The best first, whatever is known of the problem itself."""
    problem = representative(problem)
    costs = _costs(problem)
    likely = _likely(costs)
    times = [_corrected(problem, each, expected) for each, expected in likely]
    order = sorted(range(len(likely)), key=times.__getitem__)
    found = [likely[place][0] for place in order]
    return [*found, *(each for each, _ in costs[len(likely) :])][:_KEPT]


def likely_configs(problem: Problem) -> list[Config]:
    """Those that may be the fastest, the least first."""
    return [each for each, _ in _likely(_costs(representative(problem)))]


def _costs(problem: Problem) -> list[tuple[Config, Cost]]:
    """Of every config, the least first."""
    costs = [(each, cost(problem, each)) for each in every_config(problem)]
    return sorted(costs, key=lambda each: each[1].microseconds)


def _likely(costs: list[tuple[Config, Cost]]) -> list[tuple[Config, Cost]]:
    """Of these, which begin with the least."""
    if not costs:
        return []
    limit = _LIKELY * costs[0][1].microseconds
    return [each for each in costs[:_MOST_LIKELY] if each[1].microseconds <= limit]


def _corrected(problem: Problem, config: Config, expected: Cost) -> float:
    """Microseconds."""
    if problem.ragged and rows_each(problem) > _SWEPT_ROWS:
        factor = _BEYOND_SWEEPS[problem.gated] if was_measured(problem.device) else 1.0
    else:
        factor = correction(count(problem, config), expected, problem.device)
    return expected.microseconds * factor * unevenness(problem, config)


def predicted(problem: Problem, config: Config) -> Prediction:
    """How long a config should take; as it was measured, where the prediction is known to err."""
    problem = representative(problem)
    known = exception(problem)
    if known is not None and known.config == config:
        other = "was not timed" if known.of_predicted is None else f"took {known.of_predicted:.3g}"
        told = f"measured on {known.device}, where the config that is predicted to be the fastest"
        return Prediction(known.microseconds, "", f"{told} {other}")
    return modelled(problem, config)


def modelled(problem: Problem, config: Config) -> Prediction:
    """The same, whatever is known of the problem itself."""
    problem = representative(problem)
    expected = cost(problem, config)
    # What is learned knows no limits: of problems unlike the sweeps it may promise too much.
    least = 1e6 * problem.bytes / problem.device.dram_bytes_per_s
    return Prediction(max(least, _corrected(problem, config, expected)), expected.bound_by)


def _rounded(problem: Problem) -> int:
    """Rows, up to the next number that is predicted apart: that of a tile of x, or of ragged groups
    one of eight between two powers of two."""
    if problem.ragged:
        step = max(1, 1 << max(0, problem.m.bit_length() - 4))
        return -(-problem.m // step) * step
    tiles = sorted({*MMA_ROWS, *WGMMA_ROWS})
    return next((each for each in tiles if each >= problem.m), problem.m)
