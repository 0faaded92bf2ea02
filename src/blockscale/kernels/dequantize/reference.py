"""The definition, in row panels."""

from __future__ import annotations

from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.panels import PanelConfig, matrix, panel_configs, panels, unpack_rows
from blockscale.numerics import dequantize_rows
from blockscale.problem import Problem

NAME = "reference"


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k, problem.w_kind.layout.row_granularity)


def launch(
    problem: Problem,
    config: PanelConfig,
    parts: Parts,  # [groups, n, k]; tensor_scale [groups, n]
    out: Tensor,  # [groups, n, k]
) -> None:
    groups, n, k = out.shape
    for group in range(groups):
        part = matrix(parts, group)
        for rows in panels(config, 0, n):
            codes, scale = unpack_rows(part, problem.w_kind, (n, k), rows)
            row_scale = None if part.tensor_scale is None else part.tensor_scale[rows]
            out[group, rows] = dequantize_rows(
                codes, scale, problem.w_kind.format, row_scale, part.codebook, out.dtype
            )
