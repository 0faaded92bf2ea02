"""The definition: an exact maximum by torch, then the format's rule."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from blockscale.kernels.amax import derive_scales, torch_amax
from blockscale.kernels.contract import Config, FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "reference"
reads = reads_canonical


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[Config]:
    return [Config()]


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem))


def _run(problem: Problem, x: Tensor, out: Tensor) -> None:
    derive_scales(x, problem.w_kind.format, torch_amax, out)
