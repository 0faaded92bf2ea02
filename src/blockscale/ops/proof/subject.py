"""Which problems a proof holds for, and the small ones that it is made with.

Rows, columns and the number of matrices do not count, and neither does a bias: the small problems
have several of each, odd ones among them, and take several configs of a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from blockscale.kernels import Config, Kernel
from blockscale.problem import Problem

_COUNTED = (
    *("verb", "x", "w", "out", "activation"),
    *("rule", "weighted", "derives", "deterministic"),
)
_ROWS = (1, 7, 40, 130)
_ROWS_OF_LARGER = (16, 256)  # by a matrix of several tiles
_EXPERTS = 4
_BATCHES = 3


def subject(problem: Problem) -> dict[str, Any]:
    """The facts that count, without those that say nothing."""
    facts = {name: getattr(problem, name) for name in _COUNTED}
    return {name: value for name, value in facts.items() if value not in ("", False)}


def small_problems(kernel: Kernel, problem: Problem) -> list[Problem]:
    """Of the same subject, as far as the kernel takes them."""
    return [each for each in _sizes(kernel, problem) if kernel.refuses(each) is None]


def some_configs(kernel: Kernel, problem: Problem, wanted: Config | None) -> Sequence[Config]:
    """The first, and the wanted one where it is legal here."""
    every = kernel.configs(problem)
    return [every[0], *(each for each in every[1:] if each == wanted)]


def _sizes(kernel: Kernel, problem: Problem) -> Iterator[Problem]:
    unit = max(64, problem.w_kind.layout.k_granularity(problem.w_kind.format))
    if "@" in problem.x:
        unit = max(unit, problem.x_kind.format.block)
    if not problem.n:
        for m in (1, 37, 256):
            yield replace(problem, m=m, k=5 * unit, groups=1)
        if problem.verb == "repack":
            yield replace(problem, m=130, k=2 * unit, groups=_BATCHES)
        return
    groups = _EXPERTS if problem.ragged else 1
    odd = replace(problem, n=200, k=5 * unit, groups=groups, bias=False)
    even = replace(odd, n=256, k=4 * unit)
    for number, m in enumerate(_ROWS):
        with_bias = problem.verb != "input_grad" and number % 2 == 1
        sized = [replace(each, m=m, bias=with_bias) for each in (odd, even)]
        yield next((each for each in sized if kernel.refuses(each) is None), sized[0])
    for m in _ROWS_OF_LARGER:
        yield replace(odd, m=m, n=640, k=8 * unit)
    if not problem.ragged:
        yield replace(odd, m=_ROWS[1], groups=_BATCHES)
        yield replace(even, m=_ROWS[-1], groups=_BATCHES)
