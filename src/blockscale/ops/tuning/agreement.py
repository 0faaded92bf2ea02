"""No time without a right result: how far two kernels may be apart, and whether they are.

Each may round a decoded weight once to x's dtype, sum in float32 and cast once. A rounding errs by
at most a known c_i; x has random signs, and roundings keep signs, so the errors add up as a random
walk: by Hoeffding's inequality their sum passes 8 sqrt(sum c_i^2) with a chance of 3e-14. Two
results may be off in opposite directions. The bound that holds for any x grows with k where a
product grows with its square root, and would pass a kernel that forgets a part of k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import INT8
from blockscale.ops.operand import Operand
from blockscale.ops.quantize import run_dequantize
from blockscale.ops.tuning.operands import Operands
from blockscale.problem import Problem, dtype_named

# Half a unit in the last place, relative: the most that one rounding changes.
_UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
_WALK = 8.0
_STEEPEST = 1.2  # slope of an activation: silu 1.0999, gelu 1.1290
_SLACK = 1.02  # products of errors; these sums are float32 themselves
_INT8_STEPS = 127  # that a table is rounded to where x is int8
_PANEL_ELEMENTS = 1 << 24  # of a weight, decoded at a time


def tolerance(problem: Problem, operands: Operands) -> Tensor:
    """float32 [rows, n]: how far two right results may be apart, but for their last rounding."""
    x = _decoded(operands.x)
    branches = [_branch(problem, x, matrix) for matrix in operands.matrices]
    value, error = branches[0]
    if problem.gated:
        up, up_error = branches[1]
        grown = up.abs() + 1 + up_error  # swiglu_oai adds one
        error = _STEEPEST * (error * grown + value.abs() * up_error)
    return 2 * _SLACK * error


def disagreement(problem: Problem, ours: Tensor, rule: Tensor, allowed: Tensor) -> str | None:
    """How a result differs from that of the rule's choice, where it differs too much."""
    ours, rule = ours.float(), rule.float()
    out = problem.out_dtype
    last = 2 * _SLACK * _UNIT[out] * torch.maximum(ours.abs(), rule.abs())
    allowed = allowed + last + torch.finfo(out).smallest_normal
    over = ~((ours - rule).abs() <= allowed)  # also true of NaN
    if not bool(over.any()):
        return None
    worst = ((ours - rule).abs() / allowed).nan_to_num(float("inf")).argmax().item()
    row, column = divmod(int(worst), ours.shape[1])
    return (
        f"{int(over.sum())} of {over.numel()} values are wrong: at [{row}, {column}] "
        f"{ours[row, column].item():.6g} where the rule's choice has "
        f"{rule[row, column].item():.6g}, tolerance {allowed[row, column].item():.2g}"
    )


def _branch(problem: Problem, x: Tensor, matrix: Operand) -> tuple[Tensor, Tensor]:
    """x @ w.T, and how far one kernel may be off: float32 [rows, n]."""
    unit = _UNIT[torch.bfloat16 if "@" in problem.x else dtype_named(problem.x)]
    relative = unit**2 + (problem.k * _UNIT[torch.float32]) ** 2
    squares = x.square()
    value, variance = (x.new_empty(problem.rows, problem.n) for _ in range(2))
    height = max(1, _PANEL_ELEMENTS // problem.k)
    for first in range(0, problem.n, height):
        columns = slice(first, min(first + height, problem.n))
        w = _decoded(_rows(matrix, columns))
        value[:, columns] = x @ w.T
        variance[:, columns] = relative * (squares @ w.square().T)
        if _rounds_tables(problem):
            step = w.abs().amax(1) / (2 * _INT8_STEPS)
            variance[:, columns] += squares.sum(1, keepdim=True) * step.square()
    return value, _WALK * variance.sqrt()


def _rounds_tables(problem: Problem) -> bool:
    """Whether a kernel may take the values of a codebook as integers."""
    quantized = "@" in problem.x and problem.x_kind.format == INT8
    return quantized and problem.w_kind.format.is_codebook


def _rows(matrix: Operand, rows: slice) -> Operand:
    """Some rows of a canonical matrix."""
    codes, scale, *rest = matrix.tensors
    tensors = [codes[rows], scale[rows], *rest]
    return Operand(tensors, matrix.kind, [rows.stop - rows.start, matrix.shape[1]])


def _decoded(operand: Operand) -> Tensor:
    if operand.is_plain:
        return operand.tensors[0].float()
    return run_dequantize(operand, torch.float32)
