"""The definition, in row panels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blockscale.kernels.amax import derive_scales, torch_amax
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.panels import PanelConfig, panel_configs, panels
from blockscale.numerics import quantize_rows
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "reference"
reads = reads_canonical


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k)


def bind(
    problem: Problem, config: PanelConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, config))


def _run(
    problem: Problem,
    config: PanelConfig,
    x: Tensor,  # [groups, n, k]
    tensor_scale: Tensor | None,  # float32 [groups, n]; written where the problem derives it
    codebook: Tensor | None,  # float32 [2^bits]
    codes: Tensor,
    scale: Tensor,
    importance: Tensor | None = None,  # float32 [groups, k]
) -> None:
    format, layout = problem.w_kind
    if problem.derives and tensor_scale is not None:
        derive_scales(x, format, torch_amax, tensor_scale)
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
