"""Conversions between formats that lose nothing, on codes and scales alone."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import MXFP4, NVFP4, Codebook, Format
from blockscale.numerics.elements import decode_scale, encode
from blockscale.numerics.exact import cast, power_of_two

_TOP = NVFP4.scale.max_exponent  # UE4M3's largest power of two, 2^8
_SPAN = _TOP + NVFP4.scale.bias - 1 + NVFP4.scale.mantissa  # down to its smallest subnormal, 2^-9


def element_map(source: Format, target: Format) -> Tensor | None:
    """uint8 code of `target` for each code of `source`, where every value has one; else None.

    Needs the same scales over the same blocks, so that only the element changes.
    """
    same_scales = source.scale == target.scale and source.block == target.block
    if not same_scales or source.tensor_scale != target.tensor_scale:
        return None
    if isinstance(source.element, Codebook) or isinstance(target.element, Codebook):
        return None
    if not set(source.element.magnitudes) <= set(target.element.magnitudes):
        return None
    if source.element.specials != "none":
        return None
    values = torch.tensor(source.element.values, dtype=torch.float64)
    return encode(values, target.element)


def mxfp4_scales_to_nvfp4(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP4 codes [e, n, k], scales [e, n, k/32] -> NVFP4 scales [e, n, k/16], tensor scales [e].

    The codes stay as they are. With the largest block exponent at 2^8, UE4M3 reaches 17 exponents
    further down; blocks of zeros fit anywhere. Raises ValueError where a matrix spans more.
    """
    nan = decode_scale(scale, MXFP4.scale).isnan()
    zero = ((codes.unflatten(-1, (-1, MXFP4.block)) & 7).amax(-1) == 0) & ~nan
    exponent = scale.to(torch.int64) - MXFP4.scale.bias
    counted = ~(nan | zero)
    highest = torch.where(counted, exponent, -MXFP4.scale.bias).amax((-2, -1))  # [e]
    lowest = torch.where(counted, exponent, highest[:, None, None]).amin((-2, -1))
    span = int((highest - lowest).max())
    if span > _SPAN:
        raise ValueError(
            f"to_format: block exponents span {span} powers of two and NVFP4 holds {_SPAN} "
            "without loss: pass requantize=True to round instead"
        )
    relative = (exponent - highest[:, None, None] + _TOP).clamp(_TOP - _SPAN, _TOP)
    code = encode(power_of_two(relative), NVFP4.scale)
    code = code.masked_fill(zero, 0).masked_fill(nan, NVFP4.scale.max_code + 1)  # UE4M3's NaN
    tensor_scale = cast(power_of_two(highest - _TOP), torch.float32)
    return code.repeat_interleave(MXFP4.block // NVFP4.block, -1), tensor_scale
