"""Torch's own small floats as the bytes that they are."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = (
    torch.float4_e2m1fn_x2,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
)


def as_bytes(tensor: Tensor) -> Tensor:
    """A view: codes and scales that other libraries hold with a dtype. Any other dtype is left as
    it is, and refused later with what was expected."""
    return tensor.view(torch.uint8) if tensor.dtype in _SMALL else tensor
