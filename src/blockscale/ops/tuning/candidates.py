"""Every way in which a problem could be computed here: the rule's choice first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from blockscale.kernels import KERNELS, Config, Kernel
from blockscale.ops.proof.standing import why_unfit
from blockscale.ops.rule import by_rule
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build


class Candidate(NamedTuple):
    kernel: Kernel
    config: Config

    def __str__(self) -> str:
        return f"{self.kernel.NAME} with {self.config}"

    @property
    def fields(self) -> dict[str, Any]:
        """The config as JSON gives it back."""
        restored: dict[str, Any] = json.loads(json.dumps(asdict(self.config)))
        return restored

    def is_capturable(self, problem: Problem) -> bool:
        """Whether a CUDA graph can hold it."""
        return self.kernel.bind(problem, self.config).is_capturable

    def builds(self, problem: Problem) -> Sequence[Build]:
        """What must be compiled for it."""
        return self.kernel.bind(problem, self.config).builds


def offered(kernel: Kernel, problem: Problem) -> list[Candidate]:
    """Of a kernel that does not refuse."""
    return [Candidate(kernel, config) for config in kernel.configs(problem)]


def candidates(problem: Problem) -> list[Candidate]:
    """Of all kernels that take the problem and work here; of `reference`, the last, where no other
    does."""
    *rivals, reference = KERNELS[problem.verb]
    willing = [kernel for kernel in rivals if kernel.refuses(problem) is None]
    unfit = {
        kernel.NAME
        for kernel in willing
        if why_unfit(problem, kernel, kernel.configs(problem)[0]) is not None
    }
    takers = [kernel for kernel in willing if kernel.NAME not in unfit] or [reference]
    rule = Candidate(*by_rule(problem, unfit)[:2])
    every = [each for kernel in takers for each in offered(kernel, problem)]
    return [rule, *(each for each in every if each != rule)]
