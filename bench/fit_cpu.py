"""Fits the constants of the CPU products' cost model to stored sweeps, and judges its choices.

    python -m bench.fit_cpu FIT.jsonl ... [--judge OTHER.jsonl ...] [--write]

Needs scipy. What is minimised is the relative error of the predictions and, more, that of the ratio
of two algorithms of one problem, which other work on the machine disturbs less. What is judged is
the choice: the time of the algorithm that the model ranks first over that of the best one measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from pprint import pformat
from statistics import median, quantiles
from typing import Any, NamedTuple

from bench.cpu_sweep import AGAIN
from bench.sweep import problem_of
from blockscale.kernels.matmul.cpu import by_time
from blockscale.kernels.matmul.cpu_constants import CONSTANTS, FITTED_ON, Constants, Machine
from blockscale.kernels.matmul.cpu_cost import FITTED_AS, PREDICTED, constants_of, count, predict
from blockscale.kernels.matmul.cpu_counted import COUNTED
from blockscale.problem import Problem

SWEEPS = Path(__file__).parent / "results" / "sweeps"
TARGET = Path(__file__).parents[1] / "src/blockscale/kernels/matmul/cpu_constants.py"
_RATIO = 3.0  # how much more the ratio of two algorithms counts than a time
_QUIET = 0.02  # noise at which a problem counts half
_STAY = 0.05  # how much a constant that no time depends on is held where it was


class Timed(NamedTuple):
    problem: Problem
    isa: str
    machine: Machine
    seconds: dict[str, float]  # by algorithm, the best round
    noise: float  # two times of the same algorithm, the larger over the smaller


def read(paths: Iterable[str | Path]) -> list[Timed]:
    found = []
    for path in paths:
        first, *lines = Path(path).read_text().splitlines()
        rates = json.loads(first)["rates"]
        for line in lines:
            facts, isa, threads, times = json.loads(line)
            seconds = {name: times[name][0] for name in times if name != AGAIN}
            again, same = times[AGAIN][0], times[next(iter(times))][0]
            noise = max(again, same) / min(again, same)
            machine = Machine(threads, *rates[str(threads)])
            found.append(Timed(problem_of(facts), isa, machine, seconds, noise))
    return found


def _flat(constants: Constants) -> list[tuple[str, Any, float]]:
    """(field, key, value) of every number that the instruction set has a use for."""
    numbers = []
    for field in fields(Constants):
        value = getattr(constants, field.name)
        pairs = value.items() if isinstance(value, dict) else [(None, value)]
        numbers += [(field.name, key, float(number)) for key, number in pairs if number]
    return numbers


def _made(names: Sequence[tuple[str, Any, float]], logarithms: Sequence[float]) -> Constants:
    told: dict[str, Any] = {}
    for (field, key, _), logarithm in zip(names, logarithms, strict=True):
        value = math.exp(logarithm)
        if key is None:
            told[field] = value
        else:
            told.setdefault(field, {})[key] = value
    return Constants(**told)


def fit(timed: Sequence[Timed], start: Constants, isa: str) -> Constants:
    from scipy.optimize import least_squares

    names = _flat(start)
    begin = [math.log(value) for _, _, value in names]
    works = [
        (each, {name: count(each.problem, name, isa) for name in _counted(each)}) for each in timed
    ]

    def residuals(logarithms: Sequence[float]) -> list[float]:
        constants, errors = _made(names, logarithms), []
        for each, counted in works:
            off = {
                name: math.log(predict(work, constants, each.machine).seconds / each.seconds[name])
                for name, work in counted.items()
            }
            weight = _QUIET / (_QUIET + each.noise - 1)
            errors += [weight * one for one in off.values()]
            errors += [weight * _RATIO * (off[a] - off[b]) for a, b in combinations(off, 2)]
        held = [_STAY * (now - then) for now, then in zip(logarithms, begin, strict=True)]
        return errors + held

    return _made(names, least_squares(residuals, begin, loss="soft_l1").x)


def _counted(timed: Timed) -> list[str]:
    """Algorithms whose time is what the model counts: where x comes in bytes, those that multiply
    floats decode it first."""
    if "@" in timed.problem.x:
        return ["int8"]
    return [name for name in timed.seconds if name in PREDICTED]


def judged(
    timed: Sequence[Timed], constants: dict[str, Constants], machines: dict[str, Machine]
) -> dict[str, list[float]]:
    """Chosen over best by instruction set, as the kernel chooses: for one machine, whatever the
    number of threads. `int8` has no rivals."""
    found: dict[str, list[float]] = {}
    for each in timed:
        known = constants_of(each.isa, constants)
        machine = machines[FITTED_AS.get(each.isa, each.isa)]
        exact = {name: each.seconds[name] for name in each.seconds if name != "int8"}
        times = {
            name: predict(count(each.problem, name, each.isa), known, machine).seconds
            for name in exact
            if name in PREDICTED
        }
        chosen = next(name for name in by_time(each.problem, each.isa, times) if name in exact)
        found.setdefault(each.isa, []).append(exact[chosen] / min(exact.values()))
    return found


def summary(values: Sequence[float]) -> str:
    last = quantiles(values, n=10)[-1]
    return f"median {median(values):.3f}, 90% {last:.3f}, worst {max(values):.3f} ({len(values)})"


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}")


def write(constants: dict[str, Constants], machines: dict[str, Machine]) -> None:
    head = TARGET.read_text()
    body = "_SWEPT = (\n"
    for machine in dict.fromkeys(machines.values()):
        isas = tuple(each for each in constants if machines[each] == machine)
        body += f"    ({machine!r}, {isas!r}),\n"
    body += ")\nFITTED_ON = {isa: machine for machine, isas in _SWEPT for isa in isas}\n\n"
    body += "CONSTANTS = {\n"
    for isa, each in constants.items():
        told = {field.name: rounded(getattr(each, field.name)) for field in fields(Constants)}
        listed = ", ".join(f"{name}={pformat(value)}" for name, value in told.items() if value)
        body += f"    {isa!r}: Constants({listed}),\n"
    TARGET.write_text(head[: head.index("_SWEPT = ")] + body + "}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fit", nargs="+")
    parser.add_argument("--judge", nargs="*", default=[])
    parser.add_argument("--write", action="store_true", help=f"into {TARGET.name}; format it then")
    given = parser.parse_args()
    timed = read(given.fit)
    constants = {
        isa: fit([each for each in timed if each.isa == isa], known, isa)
        for isa, known in {**COUNTED, **CONSTANTS}.items()
        if any(each.isa == isa for each in timed)
    }
    fitted = list(constants)
    constants = {**CONSTANTS, **constants}
    told = json.loads(Path(given.fit[0]).read_text().splitlines()[0])
    threads = max(map(int, told["rates"]))
    rates = (rounded(each) for each in told["rates"][str(threads)])
    machine = Machine(threads, *rates, f"{told['machine']['cpu']}, {told['date'][:10]}")
    machines = {**FITTED_ON, **dict.fromkeys(fitted, machine)}
    for name, paths in (("fitted", given.fit), ("judged", given.judge)):
        draw = read(paths)
        for isa, ratios in judged(draw, constants, machines).items():
            noise = [each.noise for each in draw if each.isa == isa]
            print(f"{name} {isa:8} chosen over best: {summary(ratios)}; noise {summary(noise)}")
    if given.write:
        write(constants, machines)


if __name__ == "__main__":
    main()
