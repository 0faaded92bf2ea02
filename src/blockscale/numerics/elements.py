"""Codes to values and back: one look-up and one search, for every element."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import Codebook, Float
from blockscale.numerics.exact import cast, widen, widen_bits


def _values(element: Float | Codebook, codebook: Tensor | None, device: torch.device) -> Tensor:
    """The table that decodes; a tensor's own codebook comes before its format's."""
    if codebook is not None:
        return widen(codebook)
    return torch.tensor(element.values, dtype=torch.float64, device=device)


def _boundaries(element: Float | Codebook, codebook: Tensor | None, device: torch.device) -> Tensor:
    if codebook is None:
        return torch.tensor(element.boundaries, dtype=torch.float64, device=device)
    table = widen(codebook)
    return (table[:-1] + table[1:]) / 2


def decode(codes: Tensor, element: Float | Codebook, codebook: Tensor | None = None) -> Tensor:
    """uint8 codes, one per byte -> float64 values."""
    return _values(element, codebook, codes.device)[codes.to(torch.int64)]


def encode(value: Tensor, element: Float | Codebook, codebook: Tensor | None = None) -> Tensor:
    """float64 values -> uint8 codes: the number of boundaries strictly below the value.

    Floats are searched by magnitude and keep their sign, that of zero too. Values beyond the
    largest saturate. There must be no NaN.
    """
    bounds = _boundaries(element, codebook, value.device)
    if isinstance(element, Codebook):
        return torch.bucketize(value, bounds).to(torch.uint8)
    code = torch.bucketize(value.abs(), bounds).to(torch.uint8)
    if element.signed:
        code |= torch.signbit(value).to(torch.uint8) << element.magnitude_bits
    return code


def decode_scale(storage: Tensor, scale: Float) -> Tensor:
    """uint8 scale storage [..., blocks * bytes] -> float64 values [..., blocks]."""
    if scale.bits == 32:
        return widen_bits(storage.clone().view(torch.int32))  # mapped bytes may be misaligned
    return decode(storage, scale)


def encode_float32(value: Tensor) -> Tensor:
    """float64 values [..., blocks] -> the bytes of the nearest float32, [..., blocks * 4]."""
    return cast(value, torch.float32).contiguous().view(torch.uint8)
