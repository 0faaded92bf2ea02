"""Which kernel runs: the first of the verb's that does not refuse."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from blockscale.kernels import KERNELS, Kernel
from blockscale.problem import Problem

VERBS = tuple(KERNELS)


class Choice(NamedTuple):
    kernel: Kernel
    config: Any


@lru_cache(maxsize=4096)
def choose(problem: Problem) -> Choice:
    for kernel in KERNELS[problem.verb]:
        if kernel.refuses(problem) is None:
            return Choice(kernel, kernel.configs(problem)[0])
    raise RuntimeError(f"no kernel takes {problem}: reference must refuse nothing")


def launch(problem: Problem, *tensors: Any) -> None:
    kernel, config = choose(problem)
    kernel.launch(problem, config, *tensors)


class Answer(NamedTuple):
    """What one kernel says to a problem."""

    kernel: str
    refusal: str | None
    config: Any


def answers(problem: Problem) -> list[Answer]:
    """Every kernel of the verb, in the order they are asked."""
    every = []
    for kernel in KERNELS[problem.verb]:
        refusal = kernel.refuses(problem)
        every.append(Answer(kernel.NAME, refusal, None if refusal else kernel.configs(problem)[0]))
    return every
