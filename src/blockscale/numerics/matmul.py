"""The definition of a matrix product with quantised operands.

    y = cast(act((sum over k of x * w) * tensor_scales + bias))

with the sum, the tensor scales, the bias and the activation in float64, and one rounding at the
end. A kernel may round each decoded weight once to x's dtype and sum in float32; the bound on its
distance from this follows from those two liberties.
"""

from __future__ import annotations

from torch import Tensor

from blockscale.numerics.exact import widen


def branch(
    x: Tensor,  # float64 [m, k]: decode * scale where x is quantised
    w: Tensor,  # float64 [n, k]: decode * scale
    x_tensor_scale: Tensor | None,  # float32 [m]
    w_tensor_scale: Tensor | None,  # float32 []
    bias: Tensor | None,  # [n]
) -> Tensor:  # float64 [m, n]
    """One linear map, before any activation and before the final cast."""
    y = x @ w.mT
    if x_tensor_scale is not None:
        y = y * widen(x_tensor_scale)[:, None]
    if w_tensor_scale is not None:
        y = y * widen(w_tensor_scale)
    return y if bias is None else y + widen(bias)


def input_gradient(grad: Tensor, w: Tensor, w_tensor_scale: Tensor | None) -> Tensor:
    """d(sum(grad * (x @ w.T))) / dx in float64. grad: [m, n], w: float64 [n, k]."""
    grad = widen(grad)
    if w_tensor_scale is not None:
        grad = grad * widen(w_tensor_scale)
    return grad @ w


def group_slices(sizes: list[int], rows: int) -> list[tuple[int, int]]:
    """Start and stop of each group of rows; sizes are clipped to the rows there are."""
    slices, start = [], 0
    for size in sizes:
        stop = min(start + max(size, 0), rows)
        slices.append((start, stop))
        start = stop
    return slices
