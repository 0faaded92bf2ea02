"""The definition, in float64, in row panels. Refuses nothing and reads every layout.

Of a ragged problem it reads the group sizes on the host.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.panels import (
    PanelConfig,
    in_rows,
    matrix,
    panel_configs,
    panels,
    rows_of_groups,
    unpack_rows,
)
from blockscale.numerics import (
    branch,
    cast,
    parse_activation,
    scaled_values,
    widen,
)
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
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    x: Tensor | Parts,  # [rows, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,  # integers [groups], where the problem is ragged
    out: Tensor,  # [rows, n]
) -> None:
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0
    activation = parse_activation(problem.activation) if problem.gated else None
    for group, (start, stop) in enumerate(slices):
        for columns in panels(config, 0, problem.n if start < stop else 0):
            decoded = [_decode(problem, matrix(part, group), columns) for part in weights]
            for rows in panels(config, start, stop):
                x_values, x_tensor_scale = _x_rows(problem, x, rows)
                branches = [
                    branch(
                        x_values,
                        values,
                        x_tensor_scale,
                        None if part.tensor_scale is None else part.tensor_scale[group],
                        None if bias is None else bias[group, columns],
                    )
                    for values, part, bias in zip(decoded, weights, biases, strict=True)
                ]
                y = branches[0] if activation is None else activation(*branches)
                out[rows, columns] = cast(y, out.dtype)


def _decode(problem: Problem, part: Parts, rows: slice) -> Tensor:
    """decode * scale of some rows of a weight, float64."""
    codes, scale = unpack_rows(part, problem.w_kind, (problem.n, problem.k), rows)
    return scaled_values(codes, scale, problem.w_kind.format, part.codebook)


def _x_rows(problem: Problem, x: Tensor | Parts, rows: slice) -> tuple[Tensor, Tensor | None]:
    """float64 rows of x, decode * scale where it is quantised, and their tensor scales."""
    if isinstance(x, Tensor):
        return widen(x[rows]), None
    x, kind = in_rows(problem, x)
    codes, scale = unpack_rows(x, kind, (problem.rows, problem.k), rows)
    values = scaled_values(codes, scale, kind.format, x.codebook)
    return values, None if x.tensor_scale is None else x.tensor_scale[rows]
