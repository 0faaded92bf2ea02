"""Finding the fastest of several stopwatches, in few samples and without favour.

They take turns, round by round and in a new order each round: whatever the machine does meanwhile,
it does to all. After a few rounds the slow ones leave. The fastest of many is partly lucky, so it
meets the rule's choice once more in rounds of their own, and those decide. The order is fixed by a
seed and the number of rounds by constants: the same samples give the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

from blockscale.runtime.timing import Stopwatch

Name = TypeVar("Name", bound=Hashable)

FIRST_ROUNDS = 3
MORE_ROUNDS = 9
LAST_ROUNDS = 15
ROUNDS = FIRST_ROUNDS + MORE_ROUNDS + LAST_ROUNDS
_NEAR = 1.25  # times the fastest: slower ones leave after the first rounds


@dataclass(frozen=True)
class Found(Generic[Name]):
    best: Name
    seconds: dict[Name, float]  # medians of everyone; of those that met once more, from then


def search(
    stopwatches: Mapping[Name, Stopwatch], rule: Name, on_round: Callable[[], object]
) -> Found[Name]:
    """`rule` names the one that the others must beat."""
    order = random.Random(0)  # noqa: S311
    samples: dict[Name, list[float]] = {name: [] for name in stopwatches}

    def take_turns(names: Sequence[Name], rounds: int) -> None:
        turns = list(names)
        for _ in range(rounds):
            order.shuffle(turns)
            for name in turns:
                samples[name].append(stopwatches[name].sample())
            on_round()

    def fastest(names: Sequence[Name]) -> Name:
        return min(names, key=lambda name: median(samples[name]))

    take_turns(list(stopwatches), FIRST_ROUNDS)
    limit = _NEAR * median(samples[fastest(list(stopwatches))])
    near = [name for name in stopwatches if median(samples[name]) <= limit]
    take_turns(near, MORE_ROUNDS)
    best = fastest(near)
    if best != rule:
        samples[rule], samples[best] = [], []
        take_turns((rule, best), LAST_ROUNDS)
        best = fastest((rule, best))
    return Found(best, {name: median(taken) for name, taken in samples.items()})
