"""The names of FP4 linear libraries: NVFP4 weights cached once, activations quantised on each call.

Any [N, K] weight works: K is padded to whole blocks with zeros, which add nothing to a product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import NVFP4
from blockscale.tensor import QTensor, linear, quantize


class FP4WeightCache:
    """A weight [N, K] (and bias [N]) in NVFP4; as a context manager it drops the bytes on exit."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        if weight.dim() != 2:
            raise ValueError(f"weight must be [N, K], got shape {tuple(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise ValueError(f"bias must be [{self.out_features}], got {list(bias.shape)}")
        self.bias = bias
        packed = quantize(_pad(weight.detach()), NVFP4).prepare(x_format=NVFP4)
        self._weight: QTensor | None = packed.freeze()

    @property
    def weight(self) -> QTensor:
        if self._weight is None:
            raise RuntimeError("this FP4WeightCache was freed: quantise the weight again")
        return self._weight

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]; x is quantised to NVFP4, one tensor scale per row."""
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x has K={x.shape[-1]} but the weight has K={self.in_features}")
        return linear(_pad(x), self.weight, self.bias, x_format=NVFP4)

    __call__ = forward

    def free(self) -> None:
        self._weight = None

    def __enter__(self) -> FP4WeightCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


def fp4_quantize(weight: Tensor, bias: Tensor | None = None) -> FP4WeightCache:
    """Quantise a weight once, at model load."""
    return FP4WeightCache(weight, bias)


def fp4_cached_linear(x: Tensor, cache: FP4WeightCache) -> Tensor:
    return cache.forward(x)


def fp4_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear with both operands quantised on each call."""
    return FP4WeightCache(weight, bias).forward(x)


def fp4_matmul(A: Tensor, B: Tensor) -> Tensor:  # noqa: N803
    """A [M, K] times B [N, K] transposed, both quantised on each call."""
    return fp4_linear(A, B)


def _pad(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % NVFP4.block))
