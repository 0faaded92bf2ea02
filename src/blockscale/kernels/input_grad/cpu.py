"""Rows of the weight decoded by native code, panel by panel, and multiplied by torch in float32."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.native import NativeConfig, decoded_rows, native_configs, native_refusal
from blockscale.kernels.panels import matrix, rows_of_groups
from blockscale.problem import Problem

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cpu"
reads = reads_canonical
_PANEL_FLOATS = 1 << 21  # decoded at a time: 8 MB


def refuses(problem: Problem) -> str | None:
    refusal = native_refusal(problem.device)
    if refusal is None and problem.deterministic:
        return "torch multiplies: bits depend on threads"
    return refusal


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def bind(
    problem: Problem, config: NativeConfig, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, config, weights), is_capturable=False)


def _run(
    problem: Problem,
    config: NativeConfig,
    weights: tuple[Parts, ...],  # one: [groups, n, k]
    grad: Tensor,  # [rows, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, k]
) -> None:
    (weight,) = weights
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0
    height = max(_PANEL_FLOATS // max(problem.k, 1), 1)
    height += -height % problem.w_kind.layout.row_granularity
    for group, (start, stop) in enumerate(slices):
        if start == stop:
            continue
        part, above = matrix(weight, group), grad[start:stop].float()
        total = torch.zeros(stop - start, problem.k, dtype=torch.float32)
        for first in range(0, problem.n, height):
            rows = slice(first, min(first + height, problem.n))
            shape = (problem.n, problem.k)
            total += above[:, rows] @ decoded_rows(problem.w_kind, config, part, shape, rows)
        out[start:stop] = total if part.tensor_scale is None else total * part.tensor_scale
