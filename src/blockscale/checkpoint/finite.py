"""Refusing NaN and Inf: a checkpoint must not carry them into a model unnoticed."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.layouts import canonical
from blockscale.tensor import QTensor


class NonFiniteError(ValueError):
    """The weights themselves are at fault: the same command will fail again."""


def check_finite(name: str, value: QTensor | Tensor, remedy: str) -> None:
    if not (_is_finite(value) if isinstance(value, QTensor) else bool(value.isfinite().all())):
        raise NonFiniteError(f"{name} holds NaN or Inf: {remedy}")


def _is_finite(q: QTensor) -> bool:
    """By the bytes: no scale and no element is one of the format's NaN or Inf codes."""
    q = q.pack(canonical(q.format))
    element, scale = q.format.element, q.format.scale
    if scale.bits == 32:
        if not bool(q.scale.contiguous().view(torch.float32).isfinite().all()):
            return False
    elif bool(torch.isin(q.scale, _special_codes(scale.values)).any()):
        return False
    special = _special_codes(element.values)
    if not special.numel():
        return True
    codes = q.layout.unpack_codes(q.codes, q.format, q.shape)
    return not bool(torch.isin(codes, special).any())


def _special_codes(values: tuple[float, ...]) -> Tensor:
    table = torch.tensor(values, dtype=torch.float64)
    return (~table.isfinite()).nonzero().flatten().to(torch.uint8)
