"""Fits the constants of the Hopper GEMM's cost model to a stored sweep, and judges its choices.

    python -m bench.fit_gemm FIT.jsonl ... [--only CONSTANT,...] [--judge OTHER.jsonl ...] [--write]

Needs scipy. What is minimised is the relative error of the prediction, with more weight on configs
that are fast. What is judged is the choice: the time of the config that the model ranks first over
that of the best one measured. What corrects the model before must then be fitted anew
(bench.fit_correction).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from math import exp, log
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.gemm_sweep import problem
from blockscale.formats import parse_spec
from blockscale.kernels.input_grad.sm90_gemm import as_product
from blockscale.kernels.matmul.sm90_gemm.choice import predicted
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.cost import CONSTANTS, Constants, cost
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.problem import Problem

TARGET = Path(__file__).parents[1] / "src/blockscale/kernels/matmul/sm90_gemm/cost.py"
_NEAR = 1.5  # configs that take longer than so many times the best count little


class Timed(NamedTuple):
    problem: Problem  # as the model sees it: of a gradient, the product that it is
    times: dict[Config, float]  # microseconds
    cublas: float | None  # not in sweeps of bench.kernel_choice


def read(paths: Iterable[str | Path]) -> list[Timed]:
    """Of configs that are chosen among: sweeps may have tried others."""
    found = []
    for path in paths:
        for line in Path(path).read_text().splitlines():
            facts = json.loads(line)
            asked = dict(facts["problem"])
            name = parse_spec(asked.pop("format")).name
            made = problem(name, **asked)
            transposed = made.verb == "input_grad"
            if transposed:
                made = as_product(made)
            space = set(every_config(made, transposed))
            timed = ((Config(*numbers), time) for *numbers, time in facts["configs"])
            times = {config: time for config, time in timed if config in space}
            if times:
                found.append(Timed(made, times, facts.get("cublas")))
    return found


def choice(timed: Timed) -> Config:
    """Of the configs that were timed, what the library chooses."""
    return min(timed.times, key=lambda each: predicted(timed.problem, each).microseconds)


def regret(timed: Timed) -> float:
    """The time of the chosen config over the best one's."""
    return timed.times[choice(timed)] / min(timed.times.values())


def fit(sweep: list[Timed], names: list[str]) -> Constants:
    """Of these constants; the others stay."""
    from scipy.optimize import least_squares

    begin = [log(getattr(CONSTANTS, name)) for name in names]

    def made(logs: Iterable[float]) -> Constants:
        fitted = {name: exp(x) for name, x in zip(names, logs, strict=True)}
        return replace(CONSTANTS, **fitted)

    def errors(logs: Iterable[float]) -> list[float]:
        constants = made(logs)
        found = []
        for each in sweep:
            best = min(each.times.values())
            for config, time in each.times.items():
                weight = min(1.0, (_NEAR * best / time) ** 3)
                expected = cost(each.problem, config, constants).microseconds
                found.append(weight * log(expected / time))
        return found

    return made(least_squares(errors, begin, loss="soft_l1", f_scale=0.1).x)


def told(sweep: list[Timed], constants: Constants) -> str:
    """With no correction."""

    def of(timed: Timed) -> float:
        chosen = min(
            timed.times, key=lambda each: cost(timed.problem, each, constants).microseconds
        )
        return timed.times[chosen] / min(timed.times.values())

    regrets = sorted(map(of, sweep))
    wrong = [
        abs(log(cost(each.problem, config, constants).microseconds / time))
        for each in sweep
        for config, time in each.times.items()
        if time < _NEAR * min(each.times.values())
    ]
    tail = ", ".join(f"{each:.3f}" for each in regrets[-5:])
    return (
        f"{len(sweep)} problems: chosen over best {median(regrets):.3f} in the median, worst {tail}"
        f"; predictions are wrong by {median(wrong):.1%} in the median"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("fit", nargs="+")
    every = [each.name for each in fields(Constants)]
    parser.add_argument(
        "--only",
        type=lambda names: names.split(","),
        default=every,
        help="constants that are fitted",
    )
    parser.add_argument("--judge", nargs="*", default=[])
    parser.add_argument("--write", action="store_true", help=f"into {TARGET.name}")
    asked = parser.parse_args()
    if unknown := set(asked.only) - set(every):
        parser.error(
            f"no such constants: {', '.join(sorted(unknown))}; there are {', '.join(every)}"
        )
    sweep = read(asked.fit)
    constants = fit(sweep, asked.only)
    print("fitted:", told(sweep, constants))
    for path in asked.judge:
        print(f"{Path(path).name}:", told(read([path]), constants))
    text = "".join(f"    {name}={getattr(constants, name):.4g},\n" for name in every)
    print(text)
    if asked.write:
        source = TARGET.read_text()
        pattern = r"CONSTANTS = Constants\(\n(?:    .*\n)*\)"
        TARGET.write_text(re.sub(pattern, f"CONSTANTS = Constants(\n{text})", source))


if __name__ == "__main__":
    main()
