"""Products with weights that have one tensor scale per row.

`cat` makes such weights of matrices whose tensor scales differ, as q, k and v of a checkpoint may.
Kernels multiply a result by one tensor scale per matrix; here they run with 1, give float32, and
the columns of the result are multiplied by their own. That is as near to the definition as a
kernel's own scaling: the scale is applied to the float32 sum, and the result is cast once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

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
    if _UNSCALED not in w.__dict__:
        w.__dict__[_UNSCALED] = _unscaled(w)
    kept: QTensor = w.__dict__[_UNSCALED]
    return kept


def scale_rows(
    product: Callable[[QTensor], Tensor], w: QTensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """product   of x and a weight, in float32 [..., n]"""
    scale = w.tensor_scale
    if scale is None:
        raise TypeError("w has no tensor scale")  # `has_row_scales` was asked
    columns = scale if scale.dim() == 1 else scale[:, None]  # [n], or [l, 1, n]
    y = product(without_row_scales(w)) * columns
    if bias is not None:
        y = y + (bias if bias.dim() == 1 else bias[:, None]).float()
    return y.to(dtype)


def _unscaled(w: QTensor) -> QTensor:
    ones = torch.ones(w.shape[:-2], dtype=torch.float32, device=w.device)
    return replace(w, tensor_scale=ones)
