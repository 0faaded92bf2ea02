"""How far a tensor is from the one it was made of."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from torch import Tensor

from blockscale.tensor import QTensor

_PANEL = 1 << 22  # values that are compared at a time


def relative_error(value: QTensor | Tensor, source: QTensor | Tensor) -> float:
    """|value - source| / |source|, summed in float64, a few rows at a time."""
    noise = signal = 0.0
    for mine, theirs in zip(_panels(value), _panels(source), strict=True):
        exact = theirs.double()
        noise += (mine.double() - exact).square().sum().item()
        signal += exact.square().sum().item()
    return sqrt(noise / signal) if signal else sqrt(noise)


def _panels(value: QTensor | Tensor) -> Iterator[Tensor]:
    """Rows of plain numbers, the same ones for every tensor of a shape."""
    if len(value.shape) == 3:
        for matrix in value:
            yield from _panels(matrix)
        return
    if len(value.shape) != 2:
        raise ValueError(f"expected [n, k] or [e, n, k], got shape {list(value.shape)}")
    step = max(1, _PANEL // max(value.shape[-1], 1))
    for start in range(0, value.shape[0], step):
        rows = value[start : start + step]
        yield rows.dequantize() if isinstance(rows, QTensor) else rows
