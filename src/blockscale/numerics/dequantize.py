"""The definition of dequantisation: two float32 products in a fixed order, then one cast."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.numerics.elements import decode, decode_scale
from blockscale.numerics.exact import cast, round_to, widen


def block_values(values: Tensor, scale: Tensor, tensor_scale: Tensor) -> Tensor:
    """fp32(fp32(value * scale) * tensor_scale), held in float64."""
    return round_to(round_to(values * scale) * tensor_scale)


def dequantize_rows(
    codes: Tensor,  # uint8 [rows, k], one code per byte
    scale: Tensor,  # uint8 [rows, k / block * bytes of a scale]
    format: Format,
    tensor_scale: Tensor | None,  # float32 [rows]
    codebook: Tensor | None,  # float32 [2^bits]
    dtype: torch.dtype,
) -> Tensor:  # [rows, k]
    values = decode(codes, format.element, codebook).unflatten(-1, (-1, format.block))
    scales = decode_scale(scale, format.scale)[..., None]
    if tensor_scale is None:
        product = round_to(values * scales)
    else:
        product = block_values(values, scales, widen(tensor_scale)[:, None, None])
    return cast(product.flatten(-2), dtype)


def scaled_values(
    codes: Tensor, scale: Tensor, format: Format, codebook: Tensor | None
) -> Tensor:  # float64 [rows, k]
    """decode * scale, exact: what a matrix product sums. The tensor scale is applied to the sum."""
    values = decode(codes, format.element, codebook).unflatten(-1, (-1, format.block))
    scaled: Tensor = values * decode_scale(scale, format.scale)[..., None]
    return scaled.flatten(-2)
