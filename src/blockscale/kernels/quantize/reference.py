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
) -> None:
    format, layout = problem.w_kind
    rows = x.flatten(0, 1)
    row_scale = None if tensor_scale is None else tensor_scale.flatten()
    done = [
        quantize_rows(
            rows[part],
            format,
            problem.rule,
            None if row_scale is None else row_scale[part],
            codebook,
        )
        for part in panels(problem.m, config)
    ]
    if not done:
        return
    every_code = torch.cat([part.codes for part in done]).reshape(x.shape)
    every_scale = torch.cat([part.scale for part in done]).reshape(*x.shape[:2], -1)
    codes.copy_(layout.pack_codes(every_code, format))
    scale.copy_(layout.pack_scale(every_scale, format))
