"""Fits the constants of the stream kernel's cost model to stored sweeps, and judges its choices.

    python -m bench.fit_stream FIT.jsonl ... [--judge OTHER.jsonl ...] [--write]

Needs scipy. What is minimised is the relative error of the prediction, with more weight on configs
near the best of their problem: these are the ones to be told apart. What is judged is the choice:
the time of the config that the model ranks first over that of the best one measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from bench.gemm_sweep import problem as problem_named
from bench.sweep import problem_of
from blockscale.formats import parse_spec
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.constants import ALGORITHMS, SHARED, Algorithm, Shared
from blockscale.kernels.matmul.stream.cost import predict, rates_of
from blockscale.kernels.matmul.stream.exceptions import read_config
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.occupancy import ctas_of_busiest
from blockscale.kernels.matmul.stream.space import is_legal
from blockscale.kernels.matmul.stream.work import Work, count
from blockscale.problem import Problem

SWEEPS = Path(__file__).parent / "results" / "sweeps"
TARGET = Path(__file__).parents[1] / "src/blockscale/kernels/matmul/stream/constants.py"
_SLOW = 2.0  # times the best: configs beyond are nobody's choice
_SOFT = 0.10  # how much slower than the best a config is when it counts half


class Timing(NamedTuple):
    problem: Problem
    config: Config
    work: Work
    microseconds: float
    relative: float  # to the best of its problem


def _predicted(timing: Timing, algorithms: dict[str, Algorithm], shared: Shared) -> float:
    rates = rates_of(timing.problem.device)
    algorithm = algorithms[timing.config.algorithm]
    return predict(timing.work, algorithm, shared, rates).microseconds


def read(paths: Iterable[str | Path], spilling: bool = False, spare: bool = False) -> list[Timing]:
    """Of legal configs. Those that spill registers teach the model nothing; whoever judges a choice
    counts them. Nor do those that leave room on an SM for CTAs of the next kernel, which the model
    never takes, since most lose by it; the few that gain may be exceptions (bench.exceptions)."""
    found: list[Timing] = []
    for path in paths:
        for line in Path(path).read_text().splitlines():
            problem, configs = _launches(json.loads(line), spilling)
            facts = facts_of(problem)
            timed = [
                (config, microseconds)
                for config, microseconds in configs
                if is_legal(config, facts)
                and (spare or config.ctas_per_sm <= ctas_of_busiest(config, facts, config.splits))
            ]
            best = min((each for _, each in timed), default=0)
            found += [
                Timing(problem, config, count(config, facts), each, each / best)
                for config, each in timed
                if each < _SLOW * best
            ]
    return found


def _launches(line: Any, spilling: bool) -> tuple[Problem, list[tuple[Config, float]]]:
    """Of bench.sweep, a config with the CTAs that an SM held: some sweeps asked for fewer or more
    of them. Of bench.kernel_choice, those of this kernel."""
    if isinstance(line, dict):
        asked = dict(line["problem"])
        made = problem_named(parse_spec(asked.pop("format")).name, **asked)
        return made, [(read_config(numbers), time) for *numbers, time in line["stream"]]
    facts, rows = line
    return problem_of(facts), [
        (replace(read_config(numbers), ctas_per_sm=held), time)
        for numbers, held, spilled, time in rows
        if spilling or not spilled
    ]


class Parameters:
    """The constants as one vector of logarithms."""

    def __init__(self) -> None:
        self._names: list[tuple[str, str, str]] = []
        for name, algorithm in ALGORITHMS.items():
            for field in fields(Algorithm):
                value = getattr(algorithm, field.name)
                keys = value if isinstance(value, dict) else [""]
                self._names += [(name, field.name, key) for key in keys]
        self._names += [("", field.name, "") for field in fields(Shared)]

    def start(self) -> list[float]:
        return [math.log(self._value(*name)) for name in self._names]

    @staticmethod
    def _value(algorithm: str, field: str, key: str) -> float:
        value = getattr(ALGORITHMS[algorithm] if algorithm else SHARED, field)
        return float(value[key] if key else value)

    def made(self, vector: Sequence[float]) -> tuple[dict[str, Algorithm], Shared]:
        told: dict[str, dict[str, Any]] = {name: {} for name in (*ALGORITHMS, "")}
        for (name, field, key), logarithm in zip(self._names, vector, strict=True):
            value = math.exp(logarithm)
            if key:
                told[name].setdefault(field, {})[key] = value
            else:
                told[name][field] = value
        shared = Shared(**told.pop(""))
        return {name: Algorithm(**each) for name, each in told.items()}, shared


def fit(timings: Sequence[Timing], evaluations: int = 30) -> tuple[dict[str, Algorithm], Shared]:
    from scipy.optimize import least_squares

    parameters = Parameters()
    start = parameters.start()
    weights = [1 / math.sqrt(_SOFT + each.relative - 1) for each in timings]

    def residuals(vector: Sequence[float]) -> list[float]:
        algorithms, shared = parameters.made(vector)
        errors = [
            weight * math.log(_predicted(each, algorithms, shared) / each.microseconds)
            for each, weight in zip(timings, weights, strict=True)
        ]
        kept = [0.03 * (now - before) for now, before in zip(vector, start, strict=True)]
        return errors + kept  # what few timings tell of stays near where it was

    bounds = [each - 1.5 for each in start], [each + 1.5 for each in start]
    solved = least_squares(
        residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.12, max_nfev=evaluations
    )
    return parameters.made(list(solved.x))


def judge(timings: Sequence[Timing], predicted: Sequence[float]) -> list[float]:
    """Of each problem, how much slower the choice is than the best one measured.

    The choice is of the configs that were timed; `bench.sweep` times what the library takes.
    """
    chosen: dict[Problem, tuple[float, float]] = {}
    for each, told in zip(timings, predicted, strict=True):
        if each.problem not in chosen or told < chosen[each.problem][0]:
            chosen[each.problem] = told, each.relative
    return [relative for _, relative in chosen.values()]


def _judged(timings: Sequence[Timing], algorithms: dict[str, Algorithm], shared: Shared) -> str:
    """Of the prediction alone, with no correction."""
    return summary(judge(timings, [_predicted(each, algorithms, shared) for each in timings]))


def summary(regrets: Sequence[float]) -> str:
    cuts = quantiles(regrets, n=20, method="inclusive")
    over = sum(each > 1.1 for each in regrets)
    return (
        f"{len(regrets)} problems: median {median(regrets):.3f}, 75% {cuts[14]:.3f}, "
        f"90% {cuts[17]:.3f}, worst {max(regrets):.3f}; {over} beyond 1.1"
    )


def source(algorithms: dict[str, Algorithm], shared: Shared) -> str:
    """Of stream_constants.py, from `ALGORITHMS` on."""

    def told(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f'"{key}": {told(each)}' for key, each in value.items()) + "}"
        return f"{value:.4g}"

    def record(each: Any) -> str:
        listed = (f"{field.name}={told(getattr(each, field.name))}" for field in fields(each))
        return f"{type(each).__name__}({', '.join(listed)})"

    named = ", ".join(f'"{name}": {record(each)}' for name, each in algorithms.items())
    return f"ALGORITHMS = {{{named}}}\nSHARED = {record(shared)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fit", nargs="*")
    parser.add_argument("--judge", nargs="*", default=[])
    parser.add_argument("--evaluations", type=int, default=30)
    parser.add_argument("--write", action="store_true", help="the constants")
    args = parser.parse_args()
    algorithms, shared = ALGORITHMS, SHARED
    if args.fit:
        timings = read(args.fit)
        print(f"before, on what is fitted: {_judged(timings, algorithms, shared)}")
        if args.evaluations:
            algorithms, shared = fit(timings, args.evaluations)
            print(f"after, on what is fitted: {_judged(timings, algorithms, shared)}")
    if args.judge:
        print(f"on other problems: {_judged(read(args.judge), algorithms, shared)}")
    if args.write:
        head, _, _ = TARGET.read_text().partition("ALGORITHMS = ")
        TARGET.write_text(head + source(algorithms, shared))


if __name__ == "__main__":
    main()
