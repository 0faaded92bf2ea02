"""The definition, in float64, in row panels. Refuses nothing and reads every layout."""

from __future__ import annotations

from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.panels import PanelConfig, panel_configs, panels
from blockscale.numerics import (
    branch,
    cast,
    gate,
    group_slices,
    parse_activation,
    scaled_values,
    widen,
)
from blockscale.problem import Problem

NAME = "reference"


def refuses(problem: Problem) -> str | None:
    return None


def configs(problem: Problem) -> list[PanelConfig]:
    return panel_configs(problem.k)


def launch(
    problem: Problem,
    config: PanelConfig,
    x: Tensor | Parts,  # [rows, k]
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,  # integers [groups], where the problem is ragged
    out: Tensor,  # [rows, n]
) -> None:
    activation = parse_activation(problem.activation) if problem.gated else None
    x_values, x_tensor_scale = _x_values(problem, x)
    if group_sizes is None:
        slices = group_slices([problem.m] * problem.groups, problem.rows)
    else:  # the one host read of this kernel
        slices = group_slices(group_sizes.tolist(), problem.rows)
        out[slices[-1][1] :] = 0
    for group, (start, stop) in enumerate(slices):
        if start == stop:
            continue
        codes = [_unpack(problem, part, group) for part in weights]
        for rows in panels(problem.n, config):
            branches = [
                branch(
                    x_values[start:stop],
                    scaled_values(code[rows], scale[rows], problem.w_kind.format, part.codebook),
                    None if x_tensor_scale is None else x_tensor_scale[start:stop],
                    None if part.tensor_scale is None else part.tensor_scale[group],
                    None if bias is None else bias[group, rows],
                )
                for part, bias, (code, scale) in zip(weights, biases, codes, strict=True)
            ]
            out[start:stop, rows] = cast(gate(branches, activation), out.dtype)


def _x_values(problem: Problem, x: Tensor | Parts) -> tuple[Tensor, Tensor | None]:
    """float64 x [rows, k], decode * scale where it is quantised, and its tensor scale."""
    if isinstance(x, Tensor):
        return widen(x), None
    kind, shape = problem.x_kind, (problem.rows, problem.k)
    codes = kind.layout.unpack_codes(x.codes, kind.format, shape)
    scale = kind.layout.unpack_scale(x.scale, kind.format, shape)
    return scaled_values(codes, scale, kind.format, x.codebook), x.tensor_scale


def _unpack(problem: Problem, part: Parts, group: int) -> tuple[Tensor, Tensor]:
    kind, shape = problem.w_kind, (problem.n, problem.k)
    codes = kind.layout.unpack_codes(part.codes[group], kind.format, shape)
    return codes, kind.layout.unpack_scale(part.scale[group], kind.format, shape)
