"""The definition, in row panels."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.panels import PanelConfig, matrix, panel_configs, panels, unpack_rows
from blockscale.numerics import dequantize_rows
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "reference"
reads = reads_canonical


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k, problem.w_kind.layout.row_granularity)


def bind(
    problem: Problem, config: PanelConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, config, weights))


def _run(problem: Problem, config: PanelConfig, weights: tuple[Parts, ...], out: Tensor) -> None:
    (parts,) = weights
    groups, n, k = out.shape
    for group in range(groups):
        part = matrix(parts, group)
        for rows in panels(config, 0, n):
            codes, scale = unpack_rows(part, problem.w_kind, (n, k), rows)
            row_scale = None if part.tensor_scale is None else part.tensor_scale[rows]
            out[group, rows] = dequantize_rows(
                codes, scale, problem.w_kind.format, row_scale, part.codebook, out.dtype
            )
