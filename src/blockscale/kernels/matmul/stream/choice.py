"""Which Configs of cuda/kernels/stream.cu suit a problem: all legal ones, by predicted time.

problem -> facts -> space, occupancy -> work -> cost -> correction -> exceptions
"""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.correction import correction
from blockscale.kernels.matmul.stream.cost import Cost, cost, unevenness
from blockscale.kernels.matmul.stream.exceptions import exception
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.representative import representative
from blockscale.kernels.matmul.stream.space import every_config
from blockscale.kernels.matmul.stream.work import Work, count
from blockscale.problem import Problem

_KEPT = 40  # worth measuring: on an H200 the best of a sweep was nearly always among the first 20
# Times the least predicted time, and configs at most. Only these are corrected, which takes longer
# than predicting. In one problem of 1,213 of the sweeps, the best of these was more than 10% slower
# than the best of all; with 1.15 and 80, in four.
_LIKELY, _MOST_LIKELY = 1.2, 120

Estimate = tuple[Work, Cost]


def stream_configs(problem: Problem) -> tuple[Config, ...]:
    """The best first; none where nothing fits into shared memory."""
    return _ranked(representative(problem))


def has_config(problem: Problem) -> bool:
    """Whether there is one, which is known long before the best is."""
    return next(every_config(facts_of(representative(problem))), None) is not None


@lru_cache(maxsize=4096)
def _ranked(problem: Problem) -> tuple[Config, ...]:
    ranked = _by_prediction(problem)
    known = exception(problem)
    return tuple(ranked if known is None else dict.fromkeys((known.config, *ranked)))


def ranked_by_prediction(problem: Problem) -> list[Config]:
    """The best first, whatever is known of the problem itself."""
    return _by_prediction(representative(problem))


def _by_prediction(problem: Problem) -> list[Config]:
    likely, others = _by_cost(problem)
    times = [
        unevenness(work) * (expected.microseconds * correction(work, expected))
        for work, expected in likely
    ]
    order = sorted(range(len(likely)), key=times.__getitem__)
    found = [*(likely[place] for place in order), *others]
    return [work.config for work, _ in found[:_KEPT]]


def likely_configs(problem: Problem) -> list[Config]:
    """Those that may be the fastest, the least predicted time first."""
    likely, _ = _by_cost(representative(problem))
    return [work.config for work, _ in likely]


def _by_cost(problem: Problem) -> tuple[list[Estimate], list[Estimate]]:
    """Those that may be the fastest, and the others: the least first of each."""
    facts = facts_of(problem)
    legal = every_config(facts)
    works = [count(each, facts) for each in legal]
    costs = sorted(((each, cost(each)) for each in works), key=lambda each: each[1].microseconds)
    limit = _LIKELY * costs[0][1].microseconds if costs else 0.0
    likely = [each for each in costs[:_MOST_LIKELY] if each[1].microseconds <= limit]
    return likely, costs[len(likely) :]


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
    work = count(config, facts_of(problem))
    expected = cost(work)
    microseconds = unevenness(work) * (expected.microseconds * correction(work, expected))
    # What is learned knows no limits: of problems unlike the sweeps it may promise too much.
    least = 1e6 * problem.bytes / problem.device.dram_bytes_per_s
    return Prediction(max(least, microseconds), expected.bound_by)
