"""No figure without a correct result in the same run.

A rival is held to its own weight: its result is compared with the float64 product of x and of what
its bytes decode to, so that coarse formats are not called wrong and fine ones not called right by
chance. The tolerance is computed, not tuned:

- a decoded weight may be rounded once to the rival's dtype, and x once to int8 where the rival says
  so. Each rounding errs by at most a known c_i. x has random signs, and roundings keep signs, so
  the errors add up as a random walk: by Hoeffding's inequality their sum passes 8 sqrt(sum c_i^2)
  with a chance of 3e-14
- sums are float32: k additions, each of which errs by 2^-24 of a partial sum, itself a random walk
- the result is cast once
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Half a unit in the last place, relative: the most that one rounding changes.
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
WALK = 8.0
_SLACK = 1.01  # products of errors
_PANEL_ELEMENTS = 1 << 24  # of the weight, in float64 at a time


@dataclass(frozen=True)
class Expected:
    product: Tensor  # float64 [m, n]
    tolerance: Tensor  # float64 [m, n]

    def first_rows(self, m: int) -> Expected:
        return Expected(self.product[:m], self.tolerance[:m])


@dataclass(frozen=True)
class Verdict:
    """error: relative, root mean square. reason: what is wrong; "" where nothing is."""

    error: float
    reason: str = ""


def expect(
    x: Tensor,  # [m, k]
    decoded: Tensor,  # float32 [n, k]
    dtype: torch.dtype,
    x_block: int | None = None,
) -> Expected:
    """What a rival should give, and how far it may be off; see `Rival` for dtype and x_block."""
    x = x.double()
    n, k = decoded.shape
    # The squared errors of products are x^2 w^2 times this, plus step^2 w^2.
    relative = UNIT[dtype] ** 2 + (k * UNIT[torch.float32]) ** 2
    variance = relative * x.square()
    if x_block is not None:
        variance = variance + _half_step(x, x_block).square()
    product, walk = x.new_empty(len(x), n), x.new_empty(len(x), n)
    rows = max(1, _PANEL_ELEMENTS // k)
    for first in range(0, n, rows):
        w = decoded[first : first + rows].double()
        product[:, first : first + rows] = x @ w.T
        walk[:, first : first + rows] = variance @ w.square_().T
    cast = UNIT[dtype] * product.abs() + torch.finfo(dtype).smallest_normal
    return Expected(product, _SLACK * (WALK * walk.sqrt() + cast))


def judge(y: object, expected: Expected) -> Verdict:
    if not isinstance(y, Tensor) or y.shape != expected.product.shape:
        got = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
        return Verdict(float("inf"), f"gave {got}, not {list(expected.product.shape)}")
    error = y.double() - expected.product
    size = (error.norm() / expected.product.norm()).item()
    over = ~(error.abs() <= expected.tolerance)  # also true of NaN
    if not over.any():
        return Verdict(size)
    worst = (error.abs() / expected.tolerance).nan_to_num(float("inf")).argmax().item()
    row, column = divmod(worst, y.shape[1])
    found, wanted = y[row, column].item(), expected.product[row, column].item()
    allowed = expected.tolerance[row, column].item()
    return Verdict(
        size,
        f"{int(over.sum())} of {y.numel()} values are off; at [{row}, {column}] {found:.6g} "
        f"instead of {wanted:.6g}, tolerance {allowed:.2g}",
    )


def _half_step(x: Tensor, block: int) -> Tensor:
    """The most by which int8 changes each value: half of 1/127 of the largest in its block."""
    blocks = x.unflatten(1, (-1, block or x.shape[1]))
    return (blocks.abs().amax(-1, keepdim=True) / 254).expand_as(blocks).flatten(1)
