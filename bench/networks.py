"""Small networks that learn from timings how far a predicted time errs.

Several networks learn from the timings, and err less together than one does alone: what few timings
tell of, each makes up in its own way. One network then learns what they say on average of launches
that nobody timed, so that a choice evaluates one: of several such pupils the one that says most
nearly the same of the launches that were timed.

Only the order of configs within a problem decides which is taken, so that the loss is of errors
less their mean over the problem, with more weight on configs near the best. The mean error counts
too, but less: by it rival kernels are compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.matmul.fragments.network import Layer
from blockscale.runtime import Device

_TEACHERS, _PUPILS = 8, 3
_SHARE = 0.25  # of the problems, in each step
_RATE, _DECAY = 5e-3, 0.3
_LESSON = 4096  # launches of a step
_DIGITS = 5


class Timed(NamedTuple):
    """A launch."""

    facts: list[float]
    missed: float  # logarithm of measured over predicted time
    problem: Hashable
    relative: float  # to the best of its problem
    before: bool  # the kernel was slower then, in a way that networks are to tell from the rest


class Shape(NamedTuple):
    hidden: tuple[int, ...]
    near: float  # a config counts half that is so much slower than the best; and larger errors
    # count by their size, not by its square
    level: float  # weight of a problem's mean error
    steps: int  # of learning from timings
    lessons: int  # of learning from networks


class Networks:
    """Some of one shape, side by side; of features that they normalise themselves."""

    def __init__(self, number: int, hidden: tuple[int, ...], features: Tensor) -> None:
        self._mean, self._spread = features.mean(0), features.std(0) + 1e-6
        sizes = features.shape[1], *hidden, 1
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
        """The first, as lists of rounded numbers, of features that are not normalised, and without
        the last of them, which is 0."""
        found = [(weights[0].detach().T, biases[0, 0].detach()) for weights, biases in self._layers]
        weights, biases = found[0]
        weights = weights / self._spread
        found[0] = weights[:, :-1], biases - weights @ self._mean
        return [
            Layer([_rounded(row) for row in weights.tolist()], _rounded(biases.tolist()))
            for weights, biases in found
        ]

    def mean(self, facts: Iterable[list[float]]) -> list[float]:
        """What all say of launches of the kernel as it is."""
        with torch.no_grad():
            said: list[float] = self(_today(facts)).mean(0).tolist()
        return said


def _rounded(numbers: list[float]) -> list[float]:
    return [float(f"{each:.{_DIGITS}g}") for each in numbers]


def fit(
    timed: Sequence[Timed], others: Iterable[list[float]], shape: Shape, seed: int
) -> tuple[Networks, list[Layer]]:
    """Those that learned from timings, and the one that learned from them; `others` are facts of
    launches that nobody timed. Teachers know one fact more, the last: whether a timing is from
    before. Pupils learn of the kernel as it is."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the same sums on every machine of a kind
    teachers = _taught_by_timings(timed, shape)
    known = _today([each.facts for each in timed])
    told = torch.cat([_today(others), known])
    pupils = [_taught_by_networks(teachers, told, shape) for _ in range(_PUPILS)]
    return teachers, min(pupils, key=lambda each: _apart(each, teachers, known)).plain()


def _today(facts: Iterable[list[float]]) -> Tensor:
    return torch.tensor([[*each, 0.0] for each in facts])


def _taught_by_timings(timed: Sequence[Timed], shape: Shape) -> Networks:
    x = torch.tensor([[*each.facts, float(each.before)] for each in timed])
    missed = torch.tensor([each.missed for each in timed])
    numbers: dict[Hashable, int] = {}
    problem = torch.tensor([numbers.setdefault(each.problem, len(numbers)) for each in timed])
    weight = torch.tensor([1 / (shape.near + each.relative - 1) for each in timed])
    networks = Networks(_TEACHERS, shape.hidden, x)

    def loss() -> Tensor:
        some = (torch.rand(len(numbers)) < _SHARE)[problem].nonzero()[:, 0]
        errors = networks(x[some]) - missed[some]
        return _loss(errors, problem[some], weight[some], len(numbers), shape)

    networks.train(shape.steps, _DECAY, loss)
    return networks


def _loss(errors: Tensor, problem: Tensor, weight: Tensor, problems: int, shape: Shape) -> Tensor:
    def of_problems(values: Tensor) -> Tensor:
        return torch.zeros(*values.shape[:-1], problems).index_add(-1, problem, values)

    mean = of_problems(weight * errors) / of_problems(weight).clamp(min=1e-6)
    apart = (errors - mean[:, problem]) / shape.near
    robust = 2 * shape.near**2 * ((1 + apart**2).sqrt() - 1)
    return (weight * (robust + shape.level * errors**2)).mean(-1).sum()


def _taught_by_networks(teachers: Networks, x: Tensor, shape: Shape) -> Networks:
    with torch.no_grad():
        said = torch.cat([teachers(some).mean(0) for some in x.split(_LESSON)])
    network = Networks(1, shape.hidden, x)

    def loss() -> Tensor:
        some = torch.randint(len(x), (_LESSON,))
        return ((network(x[some])[0] - said[some]) ** 2).mean()

    network.train(shape.lessons, 0.0, loss)
    return network


def _apart(pupil: Networks, teachers: Networks, x: Tensor) -> float:
    with torch.no_grad():
        return float(((pupil(x)[0] - teachers(x).mean(0)) ** 2).mean())


def write(path: Path, layers: list[Layer], device: Device) -> None:
    told = [
        "[[" + ",\n".join(json.dumps(row) for row in weights) + "],\n" + json.dumps(biases) + "]"
        for weights, biases in layers
    ]
    head = f'{{"target": "{device.arch}", "sms": {device.sms}, "layers": [\n'
    path.write_text(head + ",\n".join(told).replace(", ", ",") + "\n]}\n")
