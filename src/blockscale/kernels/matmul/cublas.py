"""For many rows on a GPU: some rows of the weights at a time are decoded to x's dtype, and torch's
library multiplies. Each weight is rounded once; sums are in float32, in an order of the library's.

Quantised x is decoded once: to bfloat16 where that holds every value times its scale (NVFP4 and the
MX formats), else to float32, which is multiplied as float64 (see `decoded`).

Where sums are results, torch writes them to the output. Otherwise one more pass takes the float32
sums, applies tensor scales, bias and activation, and casts once.

Of a ragged problem it reads the group sizes on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.cuda.epilogue import Sums, epilogue, finish
from blockscale.kernels.decoded import (
    decode_rows,
    decoder,
    folds_tensor_scale,
    lift_of,
    multiplied_dtype,
    product,
    rows_of_scratch,
    scale_decoded,
    torch_writes,
    unreadable,
)
from blockscale.kernels.panels import panels, rows_of_groups
from blockscale.numerics import Activation, parse_activation
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build, cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cublas"
reads = reads_canonical


@dataclass(frozen=True)
class Config(BaseConfig):
    rows: int  # of the weights, decoded at a time
    doubled: bool  # float32 is multiplied as float64
    rounds_x: bool  # quantised x, which bfloat16 would round, is decoded to float32

    def __str__(self) -> str:
        widened = "x decoded to float32, since bfloat16 would round it; " if self.rounds_x else ""
        as_double = ", float32 as float64 (no setting lets TF32 in)" if self.doubled else ""
        return f"{widened}{self.rows} rows of w decoded at a time; torch multiplies{as_double}"


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device)
    if refusal is None and problem.deterministic:
        return "leaves the order of sums to torch's library"
    if refusal is None and "@" in problem.x and (unread := unreadable(problem.x_kind)):
        return unread
    return refusal or unreadable(problem.w_kind)


def configs(problem: Problem) -> list[Config]:
    doubled = multiplied_dtype(problem) == torch.float32
    return [Config(rows_of_scratch(problem), doubled, doubled and "@" in problem.x)]


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(
        partial(_run, problem, config, weights),
        builds=partial(_builds, problem, config),
        is_capturable=not problem.ragged,
    )


def _builds(problem: Problem, config: Config) -> Sequence[Build]:
    """What decodes the weights, some rows at a time, and what comes after their product."""
    activation = _activation(problem)
    return [
        decoder(problem, min(config.rows, problem.n)),
        epilogue(problem.out, activation and activation.name),
    ]


def _activation(problem: Problem) -> Activation | None:
    return parse_activation(problem.activation) if problem.gated else None


def _run(
    problem: Problem,
    config: Config,
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    x: Tensor | Parts,  # [rows, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    values, x_scale = _x(problem, x)
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0  # rows of nobody
    for group, (start, stop) in enumerate(slices):
        one, rows = slice(group, group + 1), slice(start, stop)
        parts = [part.cut(one) for part in weights]
        for columns in panels(config, 0, problem.n if start < stop else 0):
            _panel(
                problem,
                parts,
                values[None, rows],
                None if x_scale is None else x_scale[None, rows],
                [None if bias is None else bias[one, columns] for bias in biases],
                columns,
                out[None, rows, columns],
            )


def _x(problem: Problem, x: Tensor | Parts) -> tuple[Tensor, Tensor | None]:
    dtype = multiplied_dtype(problem)
    if isinstance(x, Tensor):
        return x.to(dtype), None
    # Blocked scales are those of each matrix, padded.
    blocked = problem.x_kind.layout.scales == "blocked"
    matrices = problem.groups if blocked and not problem.ragged else 1
    shape = problem.rows // max(matrices, 1), problem.k
    codes, scale = (each.reshape(matrices, -1, each.shape[-1]) for each in (x.codes, x.scale))
    parts = Parts(codes, scale.flatten(1) if blocked else scale, None, x.codebook)
    values = decode_rows(problem.x_kind, parts, slice(0, shape[0]), shape, dtype)
    return values.flatten(0, 1), x.tensor_scale


def _panel(
    problem: Problem,
    weights: Sequence[Parts],  # one, or gate and up: [1, n, k]
    x: Tensor,  # [1, rows, k]
    x_scale: Tensor | None,  # [1, rows]
    biases: Sequence[Tensor | None],  # [1, columns]
    columns: slice,
    out: Tensor,  # [1, rows, columns]
) -> None:
    """Some columns of the result, which are rows of the weights."""

    def product_of(part: Parts, out: Tensor | None = None) -> Tensor:
        shape, scale = (problem.n, problem.k), scale_decoded(problem, part)
        panel = decode_rows(problem.w_kind, part, columns, shape, x.dtype, scale)
        return product(x, panel.mT, out)

    lift, folded = lift_of(problem), folds_tensor_scale(problem)
    scales = [None if folded else part.tensor_scale for part in weights]
    left = (*scales, *biases, x_scale, problem.activation or None)
    if lift == 1.0 and all(each is None for each in left) and torch_writes(problem, out.numel()):
        product_of(weights[0], out)
        return
    sums = [
        Sums(product_of(part), scale, bias)
        for part, scale, bias in zip(weights, scales, biases, strict=True)
    ]
    finish(sums, out, _activation(problem), x_scale, 1 / lift)
