"""Fits the correction of the stream kernel's predicted times to stored sweeps, and judges choices.

    python -m bench.fit_correction FIT.jsonl ... [--judge OTHER.jsonl ...] [--write]

Several networks learn from the timings, and err less together than one does alone: what few timings
tell of, each makes up in its own way. One network then learns what they say on average of launches
that nobody timed, so that a choice evaluates one. Problems that `--judge` has are left out of the
fit wherever they stand.

Only the order of configs within a problem decides, so that the loss is of errors less their mean
over the problem, with more weight on configs near the best.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from bench.fit_stream import Timing, judge, read, summary
from bench.sweep import draw_problem
from blockscale.formats import NVFP4
from blockscale.kernels.matmul.stream.choice import likely_costs
from blockscale.kernels.matmul.stream.correction import TABLE, Layer, evaluate, features
from blockscale.kernels.matmul.stream.cost import cost, count
from blockscale.layouts import canonical
from blockscale.problem import Kind, Problem

_HIDDEN = (64, 32)
_TEACHERS = 8
_SHARE = 0.25  # of the problems, in each step
_STEPS, _RATE, _DECAY = 2500, 5e-3, 0.3
_SOFT = 0.10  # how much slower than the best a config is when it counts half
_ROBUST = 0.10  # errors beyond count by their size and not by its square
_LEVEL = 0.05  # weight of a problem's mean error, which no choice depends on
_TAUGHT = 3000  # problems whose likely configs the last network is taught about
_CODED = 8  # every so many of them with x in NVFP4
_LESSONS, _LESSON = 8000, 4096  # steps, and launches of each
_DIGITS = 5


class Networks:
    """Some of one shape, side by side; of features that they normalise themselves."""

    def __init__(self, number: int, features: Tensor) -> None:
        self._mean, self._spread = features.mean(0), features.std(0) + 1e-6
        sizes = features.shape[1], *_HIDDEN, 1
        self._layers: list[tuple[Tensor, Tensor]] = []
        for wide, high in pairwise(sizes):
            scale = (0.1 if high == 1 else 1) / math.sqrt(wide)
            weights, biases = (
                (scale * (2 * torch.rand(number, rows, high) - 1)).requires_grad_()
                for rows in (wide, 1)
            )
            self._layers.append((weights, biases))

    def __call__(self, features: Tensor) -> Tensor:
        values = ((features - self._mean) / self._spread).expand(len(self._layers[0][0]), -1, -1)
        for weights, biases in self._layers[:-1]:
            values = torch.baddbmm(biases, values, weights).tanh()
        weights, biases = self._layers[-1]
        return torch.baddbmm(biases, values, weights)[..., 0]

    def train(self, steps: int, decay: float, loss: Callable[[], Tensor]) -> None:
        parameters = [each for layer in self._layers for each in layer]
        optimiser = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, _RATE, total_steps=steps, pct_start=0.1
        )
        for _ in range(steps):
            optimiser.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()

    def plain(self) -> list[Layer]:
        """The first, as lists of rounded numbers, of features that are not normalised."""
        found = [(weights[0].detach().T, biases[0, 0].detach()) for weights, biases in self._layers]
        weights, biases = found[0]
        weights = weights / self._spread
        found[0] = weights, biases - weights @ self._mean
        return [
            Layer([_rounded(row) for row in weights.tolist()], _rounded(biases.tolist()))
            for weights, biases in found
        ]


def _rounded(numbers: list[float]) -> list[float]:
    return [float(f"{each:.{_DIGITS}g}") for each in numbers]


def known(timing: Timing) -> tuple[list[float], float]:
    """Of one launch: its features, and by how much the prediction missed it."""
    expected = cost(timing.problem, timing.config)
    missed = math.log(timing.microseconds / expected.microseconds)
    return features(timing.work, expected, timing.problem.device.sms), missed


def taught_by_timings(timings: Sequence[Timing]) -> Networks:
    listed = [known(each) for each in timings]
    x = torch.tensor([found for found, _ in listed])
    missed = torch.tensor([missed for _, missed in listed])
    numbers: dict[object, int] = {}
    problem = torch.tensor([numbers.setdefault(each.problem, len(numbers)) for each in timings])
    weight = torch.tensor([1 / (_SOFT + each.relative - 1) for each in timings])
    networks = Networks(_TEACHERS, x)

    def loss() -> Tensor:
        some = (torch.rand(len(numbers)) < _SHARE)[problem].nonzero()[:, 0]
        return _loss(networks(x[some]) - missed[some], problem[some], weight[some], len(numbers))

    networks.train(_STEPS, _DECAY, loss)
    return networks


def _loss(errors: Tensor, problem: Tensor, weight: Tensor, problems: int) -> Tensor:
    def of_problems(values: Tensor) -> Tensor:
        return torch.zeros(*values.shape[:-1], problems).index_add(-1, problem, values)

    mean = of_problems(weight * errors) / of_problems(weight).clamp(min=1e-6)
    apart = (errors - mean[:, problem]) / _ROBUST
    robust = 2 * _ROBUST**2 * ((1 + apart**2).sqrt() - 1)
    return (weight * (robust + _LEVEL * errors**2)).mean(-1).sum()


def taught_by_networks(teachers: Networks, timings: Sequence[Timing]) -> Networks:
    """One, by launches that might be chosen and by those that were timed."""
    told = [
        features(count(problem, config), expected, problem.device.sms)
        for problem in _drawn()
        for config, expected in likely_costs(problem).items()
    ]
    x = torch.tensor([*told, *(known(each)[0] for each in timings)])
    with torch.no_grad():
        said = torch.cat([teachers(some).mean(0) for some in x.split(_LESSON)])
    network = Networks(1, x)

    def loss() -> Tensor:
        some = torch.randint(len(x), (_LESSON,))
        return ((network(x[some])[0] - said[some]) ** 2).mean()

    network.train(_LESSONS, 0.0, loss)
    return network


def _drawn() -> Iterator[Problem]:
    order = random.Random(0)  # noqa: S311
    codes = str(Kind(NVFP4, canonical(NVFP4)))
    for number in range(_TAUGHT):
        problem = draw_problem(order)
        yield replace(problem, x=codes) if number % _CODED == 0 else problem


def fit(timings: Sequence[Timing], seed: int = 0) -> tuple[Networks, list[Layer]]:
    """Those that learned from timings, and the one that learned from them."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the same sums on every machine of a kind
    teachers = taught_by_timings(timings)
    return teachers, taught_by_networks(teachers, timings).plain()


def averaged(timings: Sequence[Timing], teachers: Networks) -> list[float]:
    with torch.no_grad():
        factors = teachers(torch.tensor([known(each)[0] for each in timings])).mean(0).exp()
    alone = [cost(each.problem, each.config).microseconds for each in timings]
    return [microseconds * factor for microseconds, factor in zip(alone, factors, strict=True)]


def corrected(timings: Sequence[Timing], layers: list[Layer]) -> list[float]:
    return [
        cost(each.problem, each.config).microseconds * math.exp(evaluate(layers, known(each)[0]))
        for each in timings
    ]


def write(layers: list[Layer], timings: Sequence[Timing]) -> None:
    device = timings[0].problem.device
    told = [
        "[[" + ",\n".join(json.dumps(row) for row in weights) + "],\n" + json.dumps(biases) + "]"
        for weights, biases in layers
    ]
    head = f'{{"target": "{device.arch}", "sms": {device.sms}, "layers": [\n'
    TABLE.write_text(head + ",\n".join(told).replace(", ", ",") + "\n]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fit", nargs="+")
    parser.add_argument("--judge", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    judges = read(args.judge)
    held_out = {each.problem for each in judges}
    timings = [each for each in read(args.fit) if each.problem not in held_out]
    teachers, layers = fit(timings, args.seed)
    for name, some in (("what is fitted", timings), ("other problems", judges)):
        if some:
            alone = [cost(each.problem, each.config).microseconds for each in some]
            print(f"{name}, predicted: {summary(judge(some, alone))}")
            print(f"{name}, corrected by several: {summary(judge(some, averaged(some, teachers)))}")
            print(f"{name}, corrected: {summary(judge(some, corrected(some, layers)))}")
    if args.write:
        write(layers, timings)


if __name__ == "__main__":
    main()
