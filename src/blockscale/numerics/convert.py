"""Conversions between formats that lose nothing, on codes and scales alone."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import MXFP4, NVFP4, Codebook, Format
from blockscale.numerics.elements import encode
from blockscale.numerics.exact import cast, power_of_two

_E8M0_NAN = 0xFF
_UE4M3_NAN = 0x7F
_UE4M3_POWERS = 17  # 2^-9 (its smallest subnormal) to 2^8: exponents may span this much


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
    bias = MXFP4.scale.bias
    nan = scale == _E8M0_NAN
    zero = (codes.unflatten(-1, (-1, MXFP4.block)) & 7).amax(-1) == 0
    counted = ~(nan | zero)
    exponent = scale.to(torch.int64) - bias
    highest = torch.where(counted, exponent, -bias).amax((-2, -1))  # [e]
    lowest = torch.where(counted, exponent, highest[:, None, None]).amin((-2, -1))
    span = int((highest - lowest).max()) if scale.numel() else 0
    if span > _UE4M3_POWERS:
        raise ValueError(
            f"to_format: block exponents span {span} powers of two and NVFP4 holds "
            f"{_UE4M3_POWERS} without loss: pass requantize=True to round instead"
        )
    top = NVFP4.scale.max_exponent  # 8
    relative = (exponent - highest[:, None, None] + top).clamp(-9, top)
    code = encode(power_of_two(relative), NVFP4.scale)
    code = code.masked_fill(nan, _UE4M3_NAN).masked_fill(zero, 0)
    tensor_scale = cast(power_of_two(highest - top), torch.float32)
    return code.repeat_interleave(MXFP4.block // NVFP4.block, -1), tensor_scale
