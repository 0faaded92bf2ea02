"""What a problem needs compiled before it runs."""

from __future__ import annotations

from blockscale.ops.choose import choose
from blockscale.ops.tuning.candidates import Candidate
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build


def builds(problem: Problem) -> list[Build]:
    """Of the kernel and config that run it; nothing where they are not compiled at run time."""
    kernel, config, _ = choose(problem)
    return Candidate(kernel, config).builds(problem)
