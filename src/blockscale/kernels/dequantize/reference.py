"""The definition, in row panels."""

from __future__ import annotations

from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.panels import PanelConfig, panel_configs, panels
from blockscale.numerics import dequantize_rows
from blockscale.problem import Problem

NAME = "reference"


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k)


def launch(
    problem: Problem,
    config: PanelConfig,
    parts: Parts,  # [groups, n, k]; tensor_scale [groups, n]
    out: Tensor,  # [groups, n, k]
) -> None:
    format, layout = problem.w_kind
    groups, n, k = out.shape
    codes = layout.unpack_codes(parts.codes, format, (groups, n, k)).flatten(0, 1)
    scale = layout.unpack_scale(parts.scale, format, (groups, n, k)).flatten(0, 1)
    row_scale = None if parts.tensor_scale is None else parts.tensor_scale.flatten()
    flat = out.view(groups * n, k)
    for rows in panels(groups * n, config):
        flat[rows] = dequantize_rows(
            codes[rows],
            scale[rows],
            format,
            None if row_scale is None else row_scale[rows],
            parts.codebook,
            out.dtype,
        )
