"""The definition, in float64, in row panels of the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.panels import PanelConfig, panel_configs, panels
from blockscale.numerics import cast, group_slices, input_gradient, scaled_values
from blockscale.problem import Problem

NAME = "reference"


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k)


def launch(
    problem: Problem,
    config: PanelConfig,
    grad: Tensor,  # [rows, n]
    weight: Parts,  # [groups, n, k]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, k]
) -> None:
    kind, shape = problem.w_kind, (problem.n, problem.k)
    sizes = [problem.m] * problem.groups if group_sizes is None else group_sizes.tolist()
    slices = group_slices(sizes, problem.rows)
    out[slices[-1][1] :] = 0
    for group, (start, stop) in enumerate(slices):
        if start == stop:
            continue
        codes = kind.layout.unpack_codes(weight.codes[group], kind.format, shape)
        scale = kind.layout.unpack_scale(weight.scale[group], kind.format, shape)
        scalar = None if weight.tensor_scale is None else weight.tensor_scale[group]
        total = torch.zeros(stop - start, problem.k, dtype=torch.float64, device=out.device)
        for rows in panels(problem.n, config):
            w = scaled_values(codes[rows], scale[rows], kind.format, weight.codebook)
            total += input_gradient(grad[start:stop, rows], w, scalar)
        out[start:stop] = cast(total, out.dtype)
