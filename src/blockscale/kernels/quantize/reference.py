"""The definition, in row panels."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.kernels.panels import PanelConfig, panel_configs, panels
from blockscale.numerics import quantize_rows
from blockscale.problem import Problem

NAME = "reference"


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k)


def launch(
    problem: Problem,
    config: PanelConfig,
    x: Tensor,  # [groups, n, k]
    tensor_scale: Tensor | None,  # float32 [groups, n]
    codebook: Tensor | None,  # float32 [2^bits]
    codes: Tensor,
    scale: Tensor,
    importance: Tensor | None = None,  # float32 [groups, k]
) -> None:
    format, layout = problem.w_kind
    for group, values in enumerate(x):
        row_scale = None if tensor_scale is None else tensor_scale[group]
        done = [
            quantize_rows(
                values[rows],
                format,
                problem.rule,
                None if row_scale is None else row_scale[rows],
                codebook,
                None if importance is None else importance[group],
            )
            for rows in panels(config, 0, len(values))
        ]
        codes[group] = layout.pack_codes(torch.cat([part.codes for part in done]), format)
        scale[group] = layout.pack_scale(torch.cat([part.scale for part in done]), format)
