"""Exact arithmetic in float64, rounded where a definition says "float32".

Every float32, float16 and bfloat16 is a *normal* float64, and so is every product of two of them.
So float64 carries all intermediate values here: settings that flush subnormals to zero, use TF32
or lower the precision of matrix products cannot change a bit, and each rounding is one visible call
of `round_to`. Only IEEE + - * / and integer operations are used, so every device gives the same
bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

# dtype -> (mantissa bits, exponent of the smallest normal)
_GRID = {
    torch.float32: (23, -126),
    torch.bfloat16: (7, -126),
    torch.float16: (10, -14),
}
_QUIET_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
_INF_BITS = 0x7F800000


def float32_bits(x: Tensor) -> Tensor:
    """The bits of x as float32, in int32. x is float32, bfloat16 or float16."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).to(torch.int32) << 16
    return x.to(torch.float32).view(torch.int32)


def magnitude_bits(x: Tensor) -> Tensor:
    """Bits of |x|. They order like |x|, which makes an integer maximum an exact amax."""
    return float32_bits(x) & 0x7FFFFFFF


def is_finite_bits(bits: Tensor) -> Tensor:
    return bits < _INF_BITS


def is_nan_bits(bits: Tensor) -> Tensor:
    return bits > _INF_BITS


def widen_bits(bits: Tensor) -> Tensor:
    """float64 values of float32 bits, subnormals included."""
    magnitude = bits & 0x7FFFFFFF
    tiny = magnitude.to(torch.float64) * 2.0**-149
    subnormal = torch.where(bits < 0, -tiny, tiny)
    return torch.where(
        magnitude < 0x00800000, subnormal, bits.view(torch.float32).to(torch.float64)
    )


def widen(x: Tensor) -> Tensor:
    """float64 values of a float32, bfloat16 or float16 tensor."""
    return widen_bits(float32_bits(x))


def exponent_of(value: Tensor) -> Tensor:
    """floor(log2(|value|)) of float64, as int64; -1023 for zero."""
    return ((value.view(torch.int64) >> 52) & 0x7FF) - 1023


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent as float64, for exponents from -1022 to 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)


def round_to(value: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """float64 in, the nearest number of `dtype` (ties to even) out, still held in float64."""
    mantissa, smallest_exponent = _GRID[dtype]
    step = power_of_two(exponent_of(value).clamp(smallest_exponent, 1000) - mantissa)
    rounded = torch.round(value / step) * step  # torch.round breaks ties to even
    limit = torch.finfo(dtype).max
    infinite = torch.copysign(torch.full_like(value, torch.inf), value)
    return torch.where(rounded.abs() > limit, infinite, rounded)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """One rounding from float64 to `dtype`. Subnormals are made from bits, and NaN is canonical."""
    rounded = round_to(value, dtype)
    if dtype == torch.float16:
        out = rounded.to(torch.float32).to(torch.float16)
        bits = out.view(torch.int16)
    else:
        subnormal = (rounded.abs() * 2.0**149).nan_to_num(0.0, 0.0).clamp(max=0x00800000)
        sign = torch.where(torch.signbit(rounded), -(2**31), 0)
        tiny_bits = (subnormal.to(torch.int64) + sign).to(torch.int32)
        bits = rounded.to(torch.float32).view(torch.int32)
        bits = torch.where(rounded.abs() < 2.0**-126, tiny_bits, bits)
        if dtype == torch.bfloat16:
            bits = (bits >> 16).to(torch.int16)
    return torch.where(rounded.isnan(), _QUIET_NAN[dtype], bits).to(bits.dtype).view(dtype)
