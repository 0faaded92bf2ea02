"""What a problem needs compiled before it runs."""

from __future__ import annotations

from blockscale.ops.choose import choose
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build


def builds(problem: Problem) -> list[Build]:
    """Of the kernel that runs it; nothing where that kernel is not compiled at run time."""
    kernel = choose(problem).kernel
    listed = getattr(kernel, "builds", None)
    return [] if listed is None else list(listed(problem))
