"""The choice by rule: the first of the verb's kernels that does not refuse, with its first config.

Of several that predict their time it is the one that predicts the shortest."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from blockscale.kernels import KERNELS, Config, Kernel
from blockscale.problem import Problem

BY_RULE = "by rule"


class Choice(NamedTuple):
    kernel: Kernel
    config: Config
    reason: str


def by_rule(problem: Problem, failed: Set[str] = frozenset()) -> Choice:
    """failed: names of kernels that are passed over."""
    takers = [
        kernel
        for kernel in KERNELS[problem.verb]
        if kernel.NAME not in failed and kernel.refuses(problem) is None
    ]
    if not takers:
        raise RuntimeError(f"no kernel takes {problem}: reference must refuse nothing")
    first, *others = (Choice(kernel, kernel.configs(problem)[0], BY_RULE) for kernel in takers)
    if len(others) < 2:  # behind it stands the reference alone, which predicts nothing
        return first
    found: tuple[float, Choice] | None = None  # microseconds, as predicted
    for choice in (first, *others):
        predicted = choice.kernel.bind(problem, choice.config).predicted
        if predicted is None:
            return found[1] if found else choice
        if found is None or predicted.microseconds < found[0]:
            found = predicted.microseconds, choice
    raise RuntimeError(f"{problem}: the reference predicts a time, which it must not")
