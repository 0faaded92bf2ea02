"""Rows of the weight decoded by native code, panel by panel, and multiplied by torch in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.kernels.contract import Launch, Parts, reads_canonical
from blockscale.kernels.native import (
    DECODED,
    Decoding,
    NativeConfig,
    decoded_rows,
    native_configs,
    native_refusal,
)
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
    return Product(problem, config, weights)


class Product(Launch):
    """A call on some weights. Of one matrix that is decoded at once, everything is found out that
    does not change between calls."""

    def __init__(self, problem: Problem, config: NativeConfig, weights: tuple[Parts, ...]) -> None:
        self._problem, self._config, self._weights = problem, config, weights
        self._decoding: Decoding | None = None
        if weights and self._is_whole:
            part = matrix(weights[0], 0)
            whole = Parts(part.codes[None], part.scale[None], None, part.codebook)
            shape = 1, problem.n, problem.k
            self._decoding = Decoding(problem.w_kind, whole, config, shape, torch.float32)
            self._tensor_scale = part.tensor_scale
            self._weights = ()

    @property
    def _is_whole(self) -> bool:
        problem = self._problem
        decoded = str(problem.w_kind.layout) in DECODED
        return decoded and problem.groups == 1 and not problem.ragged and _fits(problem)

    @property
    def holds_weights(self) -> bool:
        return bool(self._weights) or (self._decoding is not None and self._decoding.copies)

    @property
    def is_capturable(self) -> bool:
        return False

    def __call__(
        self, grad: Tensor, biases: tuple[None], group_sizes: Tensor | None, out: Tensor
    ) -> None:
        problem = self._problem
        if self._decoding is None:
            _run(problem, self._config, self._weights, grad, group_sizes, out)
            return
        w = torch.empty(problem.n, problem.k, dtype=torch.float32)
        self._decoding(w[None])
        sums = out if out.dtype == torch.float32 else torch.empty(out.shape, dtype=torch.float32)
        torch.mm(grad.float(), w, out=sums)
        if self._tensor_scale is not None:
            sums *= self._tensor_scale
        if sums is not out:
            out.copy_(sums)


def _fits(problem: Problem) -> bool:
    """Whether the matrix is decoded as a whole."""
    return 0 < problem.n * problem.k <= _PANEL_FLOATS


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
