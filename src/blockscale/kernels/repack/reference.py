"""The definition: unpacked by one layout, packed by the other."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from blockscale.formats import Format
from blockscale.kernels.contract import Config, FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.layouts import Layout
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "by_layouts", "configs", "reads", "refuses"]

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


def _run(problem: Problem, codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    format, now = problem.x_kind
    shape = (problem.groups, problem.m, problem.k)
    return by_layouts(codes, scale, format, shape, now, problem.w_kind.layout)


def by_layouts(
    codes: Tensor,
    scale: Tensor,
    format: Format,
    shape: tuple[int, ...],
    now: Layout,
    target: Layout,
) -> tuple[Tensor, Tensor]:
    """By operations of torch, of any leading dimensions: compilers and transforms see each step."""
    if target.codes != now.codes:
        codes = target.pack_codes(now.unpack_codes(codes, format, shape), format)
    if target.scales != now.scales:
        scale = target.pack_scale(now.unpack_scale(scale, format, shape), format)
    return codes, scale
