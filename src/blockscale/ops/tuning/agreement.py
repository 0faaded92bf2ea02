"""No time without a right result: how far two candidates may be apart on the operands of a contest.
See `ops.agreement`."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.ops.agreement import gated_error, of_two, product_error
from blockscale.ops.operand import Operand
from blockscale.ops.quantize import run_dequantize
from blockscale.ops.tuning.operands import Operands
from blockscale.problem import Problem

_PANEL_ELEMENTS = 1 << 24  # of a weight, decoded at a time


def tolerance(problem: Problem, operands: Operands) -> Tensor:
    """float32 [rows, n]: how far two right results may be apart, but for their last rounding."""
    x = _decoded(operands.x)
    branches = [_branch(problem, x, matrix) for matrix in operands.matrices]
    value, error = branches[0]
    if problem.gated:
        error = gated_error(value, error, *branches[1])
    return of_two(error)


def _branch(problem: Problem, x: Tensor, matrix: Operand) -> tuple[Tensor, Tensor]:
    """x @ w.T, and how far one kernel may be off: float32 [rows, n]."""
    value, error = (x.new_empty(problem.rows, problem.n) for _ in range(2))
    height = max(1, _PANEL_ELEMENTS // problem.k)
    for first in range(0, problem.n, height):
        columns = slice(first, min(first + height, problem.n))
        w = _decoded(_rows(matrix, columns))
        value[:, columns] = x @ w.T
        error[:, columns] = product_error(problem, x, w)
    return value, error


def _rows(matrix: Operand, rows: slice) -> Operand:
    """Some rows of a canonical matrix."""
    codes, scale, *rest = matrix.tensors
    tensors = [codes[rows], scale[rows], *rest]
    return Operand(tensors, matrix.kind, [rows.stop - rows.start, matrix.shape[1]])


def _decoded(operand: Operand) -> Tensor:
    if operand.is_plain:
        return operand.tensors[0].float()
    return run_dequantize(operand, torch.float32)
