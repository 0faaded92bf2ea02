"""What a problem needs compiled before it runs."""

from __future__ import annotations

from collections.abc import Sequence

from blockscale.ops.choose import bind
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build


def builds(problem: Problem) -> Sequence[Build]:
    """Of the kernel and config that run it; nothing where they are not compiled at run time."""
    return bind(problem).builds
