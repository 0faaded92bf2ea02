"""Which kernel runs: what tuning has found to be the fastest here, or else the rule's choice.

On a GPU it must have shown that it works there: by the tests of this library, or by a proof, which
is made now where there is none. What fails is passed over, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Set
from functools import lru_cache
from typing import Any, NamedTuple

from blockscale.kernels import KERNELS, Launch, Parts
from blockscale.ops.proof.standing import Standing, standing, why_unfit
from blockscale.ops.rule import BY_RULE, Choice, by_rule
from blockscale.ops.tuning.stored import as_candidate, stored_result
from blockscale.problem import Problem
from blockscale.runtime import tuned_enabled
from blockscale.runtime.result_folder import warn_once
from blockscale.runtime.tuned import LEAST_GAIN

VERBS = tuple(KERNELS)


@lru_cache(maxsize=4096)
def choose(problem: Problem) -> Choice:
    failed: set[str] = set()
    while True:
        choice = _preferred(problem, failed)
        reason = why_unfit(problem, choice.kernel, choice.config)
        if reason is None:
            return choice
        failed.add(choice.kernel.NAME)
        warn_once(f"{choice.kernel.NAME} is not used for {_kind(problem)}: it {reason}")


def _kind(problem: Problem) -> str:
    """Calls that share a proof."""
    return f"{problem.verb} of x {problem.x} and w {problem.w} on {problem.device}"


def _preferred(problem: Problem, failed: Set[str]) -> Choice:
    """Of the kernels that have not failed."""
    rule = by_rule(problem, failed)
    if not problem.device.live:  # nothing was measured there
        return rule
    if not tuned_enabled():
        return rule._replace(reason=f"{BY_RULE}: BLOCKSCALE_TUNED=0 turns stored results off")
    result = stored_result(problem)
    if result is None:
        return rule
    told = f"tuned on {result.date}"
    if not result.wins:
        little = f"nothing was {LEAST_GAIN - 1:.0%} faster"
        return rule._replace(reason=f"{BY_RULE}; {told}: {little}")
    found = as_candidate(problem, result.best)
    if not isinstance(found, str) and found.kernel.NAME in failed:
        found = f"{found.kernel.NAME} has failed its proof"
    if isinstance(found, str):
        warnings.warn(f"{problem}: {told}, not used: {found}", RuntimeWarning, stacklevel=2)
        return rule._replace(reason=f"{BY_RULE}; {told}, not used: {found}")
    slower = f"{rule.kernel.NAME} with {rule.config}"
    return Choice(*found, f"{told}: {result.gain:.2f}x the speed of the rule's choice, {slower}")


def bind(problem: Problem, weights: tuple[Parts, ...] = (), frozen: bool = False) -> Launch:
    """The kernel that runs it, with its config and weights."""
    kernel, config, _ = choose(problem)
    return kernel.bind(problem, config, weights, frozen)


class Answer(NamedTuple):
    """What one kernel says to a problem, and what is known of it on this device."""

    kernel: str
    refusal: str | None
    config: Any
    standing: Standing


def answers(problem: Problem) -> list[Answer]:
    """Every kernel of the verb, in the order they are asked."""
    every = []
    for kernel in KERNELS[problem.verb]:
        refusal, known = kernel.refuses(problem), standing(problem, kernel)
        config = None if refusal else kernel.configs(problem)[0]
        if refusal is None and known.state == "failed":
            refusal = f"failed its proof {known.said}"
        every.append(Answer(kernel.NAME, refusal, config, known))
    return every
