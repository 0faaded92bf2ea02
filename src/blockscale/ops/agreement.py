"""How far a right product may be from another one, and whether it is.

A kernel may round a decoded weight once to x's dtype, sum in float32 and cast once. A rounding errs
by at most a known c_i; x has random signs, and roundings keep signs, so the errors add up as a
random walk: by Hoeffding's inequality their sum passes 8 sqrt(sum c_i^2) with a chance of 3e-14.
Two results may be off in opposite directions. The bound that holds for any x grows with k where a
product grows with its square root, and would pass a kernel that forgets a part of k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import INT8
from blockscale.problem import Problem, dtype_named

# Half a unit in the last place, relative: the most that one rounding changes.
_UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
_WALK = 8.0
_STEEPEST = 1.2  # slope of an activation: silu 1.0999, gelu 1.1290
_SLACK = 1.02  # products of errors; these sums are float32 themselves
_INT8_STEPS = 127  # that a table is rounded to where x is int8


def product_error(problem: Problem, x: Tensor, w: Tensor) -> Tensor:
    """Of one kernel: x [rows, k] and w [n, k], decoded, float32 -> [rows, n]."""
    unit = _UNIT[torch.bfloat16 if "@" in problem.x else dtype_named(problem.x)]
    relative = unit**2 + (x.shape[1] * _UNIT[torch.float32]) ** 2
    squares = x.square()
    variance = relative * (squares @ w.square().T)
    if _rounds_tables(problem):
        step = w.abs().amax(1) / (2 * _INT8_STEPS)
        variance += squares.sum(1, keepdim=True) * step.square()
    return _WALK * variance.sqrt()


def gated_error(gate: Tensor, gate_error: Tensor, up: Tensor, up_error: Tensor) -> Tensor:
    """Of act(gate) * up, from the errors of both products."""
    grown = up.abs() + 1 + up_error  # swiglu_oai adds one
    return _STEEPEST * (gate_error * grown + gate.abs() * up_error)


def of_two(error: Tensor) -> Tensor:
    """How far two results may be apart, each of which has this error."""
    return 2 * _SLACK * error


def disagreement(
    problem: Problem,
    ours: Tensor,
    other: Tensor,
    allowed: Tensor,
    name: str = "the rule's choice",
) -> str | None:
    """How a result differs from the one that `name` has, where it differs by more than `allowed`
    and the last rounding of both."""
    ours, other = ours.float(), other.float()
    out = problem.out_dtype
    last = of_two(_UNIT[out] * torch.maximum(ours.abs(), other.abs()))
    allowed = allowed + last + torch.finfo(out).smallest_normal
    over = ~((ours - other).abs() <= allowed)  # also true of NaN
    if not bool(over.any()):
        return None
    worst = ((ours - other).abs() / allowed).nan_to_num(float("inf")).argmax().item()
    row, column = divmod(int(worst), ours.shape[1])
    return (
        f"{int(over.sum())} of {over.numel()} values are wrong: at [{row}, {column}] "
        f"{ours[row, column].item():.6g} where {name} has "
        f"{other[row, column].item():.6g}, tolerance {allowed[row, column].item():.2g}"
    )


def _rounds_tables(problem: Problem) -> bool:
    """Whether a kernel may take the values of a codebook as integers."""
    quantized = "@" in problem.x and problem.x_kind.format == INT8
    return quantized and problem.w_kind.format.is_codebook
