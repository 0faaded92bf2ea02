"""The definition, in float64, in row panels of the weight."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.panels import (
    PanelConfig,
    matrix,
    panel_configs,
    panels,
    rows_of_groups,
    unpack_rows,
)
from blockscale.numerics import cast, input_gradient, scaled_values
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
    return FunctionLaunch(partial(_run, problem, config, weights), is_capturable=False)


def _run(
    problem: Problem,
    config: PanelConfig,
    weights: tuple[Parts, ...],  # one: [groups, n, k]
    grad: Tensor,  # [rows, n]
    biases: tuple[None],
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, k]
) -> None:
    (weight,) = weights
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0
    for group, (start, stop) in enumerate(slices):
        if start == stop:
            continue
        part, format = matrix(weight, group), problem.w_kind.format
        total = torch.zeros(stop - start, problem.k, dtype=torch.float64, device=out.device)
        for rows in panels(config, 0, problem.n):
            codes, scale = unpack_rows(part, problem.w_kind, (problem.n, problem.k), rows)
            w = scaled_values(codes, scale, format, part.codebook)
            total += input_gradient(grad[start:stop, rows], w, part.tensor_scale)
        out[start:stop] = cast(total, out.dtype)
