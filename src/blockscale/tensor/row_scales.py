"""Products with weights that have one tensor scale per row.

`cat` makes such weights of matrices whose tensor scales differ, as q, k and v of a checkpoint may.
Kernels multiply a result by one tensor scale per matrix; here they run with 1, give float32, and
the columns of the result are multiplied by their own. That is as near to the definition as a
kernel's own scaling: the scale is applied to the float32 sum, and the result is cast once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blockscale import ops
from blockscale.runtime.torch_private import outside_transforms
from blockscale.tensor.qtensor import QTensor

# Where it is kept: a weight that is used again finds its plans again.
_UNSCALED = "_without_tensor_scale"


def has_row_scales(w: QTensor) -> bool:
    return w.tensor_scale is not None and w.tensor_scale.dim() == len(w.shape) - 1


def without_row_scales(w: QTensor) -> QTensor:
    """The same bytes with a tensor scale of 1 per matrix; w itself where it has one already."""
    if not has_row_scales(w):
        return w
    if torch.compiler.is_compiling():
        return _unscaled(w)
    kept: QTensor | None = w.__dict__.get(_UNSCALED)
    if kept is None:
        # Made in the caller's inference mode it could never take part in training, and made under
        # a transform of torch.func it would end with it.
        with torch.inference_mode(mode=False), outside_transforms():
            kept = _unscaled(w)
        if type(kept.tensor_scale) is Tensor:  # and not a fake one
            w.__dict__[_UNSCALED] = kept
    return kept


def scale_rows(
    product: Callable[[QTensor], Tensor], w: QTensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """product   of x and a weight, in float32 [..., n]"""
    scale = w.tensor_scale
    if scale is None:
        raise TypeError("w has no tensor scale")  # `has_row_scales` was asked
    y = product(without_row_scales(w)) * _columns(scale)
    if bias is not None:
        y = y + _columns(bias).float()
    return y.to(dtype)


@dataclass(frozen=True)
class RowScaledPlan:
    """What `scale_rows` does, of calls that differ in x alone: the product has a plan, and nothing
    is checked again."""

    product: ops.Plan  # of the weight without its tensor scales, in float32
    scale: Tensor
    dtype: torch.dtype

    @property
    def is_in_place(self) -> bool:
        return self.product.is_in_place

    @property
    def is_current(self) -> bool:
        return self.product.is_current

    def __call__(
        self, x: Tensor | ops.Operand, biases: tuple[Tensor | None, ...], group_sizes: Tensor | None
    ) -> Tensor:
        y = self.product(x, (None,), group_sizes)
        out = y if self.dtype == y.dtype else torch.empty_like(y, dtype=self.dtype)
        if biases[0] is None:
            return torch.mul(y, _columns(self.scale), out=out)  # a cast is part of it
        y *= _columns(self.scale)
        return torch.add(y, _columns(biases[0]), out=out)


def unscaled_call(call: ops.MatmulCall) -> ops.MatmulCall:
    """The product that a kernel makes: without the bias, in float32."""
    return replace(call, biases=[None], out_dtype=torch.float32)


def plan_row_scaled(call: ops.MatmulCall, w: QTensor, frozen: bool) -> RowScaledPlan | None:
    """call   of the weight without its tensor scales, checked"""
    product = ops.make_plan(unscaled_call(call), (), frozen)
    if product is None or w.tensor_scale is None:
        return None
    return RowScaledPlan(product, w.tensor_scale, call.out_dtype)


def _columns(per_row: Tensor) -> Tensor:
    """Of a result: [n], or [l, 1, n]."""
    return per_row if per_row.dim() == 1 else per_row[:, None]


def _unscaled(w: QTensor) -> QTensor:
    ones = torch.ones(w.shape[:-2], dtype=torch.float32, device=w.device)
    return replace(w, tensor_scale=ones)
