"""A kernel on known problems, on a device: what is wrong with it, if anything is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from blockscale.kernels import Config, Kernel
from blockscale.ops.proof.case import Case
from blockscale.ops.proof.conversions import conversion_cases
from blockscale.ops.proof.products import product_cases
from blockscale.ops.proof.subject import small_problems, some_configs
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build


def cases(problem: Problem) -> Iterator[Case]:
    return product_cases(problem) if problem.n else conversion_cases(problem)


def builds(kernel: Kernel, problem: Problem, config: Config | None) -> list[Build]:
    """What the proof compiles, each once."""
    return list(
        dict.fromkeys(
            build
            for small in small_problems(kernel, problem)
            for each in some_configs(kernel, small, config)
            for build in kernel.bind(small, each).builds
        )
    )


def find_failure(
    kernel: Kernel, problem: Problem, config: Config | None, device: torch.device
) -> str | None:
    """The first thing that is wrong; None where everything is right."""
    asked = small_problems(kernel, problem)
    if not asked:
        return "it takes none of the small problems that could show that it works"
    for small in asked:
        for case in cases(small):
            # Weights that nobody writes may have a kernel of their own, such as that for a table
            # which is known to be symmetric.
            promises = (True, False) if case.weights else (False,)
            for each, frozen in product(some_configs(kernel, small, config), promises):
                try:
                    trouble = case.run(kernel, each, device, frozen)
                except torch.OutOfMemoryError:
                    raise  # which says nothing about the kernel
                except RuntimeError as error:
                    trouble = f"{type(error).__name__}: {error}".partition("\n")[0]
                if trouble is not None:
                    of = ", frozen weights" if frozen else ""
                    return f"{small}, {case.name}{of}, {each}: {trouble}"
    return None
