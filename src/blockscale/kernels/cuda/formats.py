"""Formats and scale rules in the terms of the CUDA sources: types that a kernel is compiled for."""

from __future__ import annotations

import math

from blockscale.formats import Float, Format
from blockscale.kernels.cuda.enums import Search, Specials, TensorScale
from blockscale.numerics import carry_from

_SPECIALS = {"none": Specials.NUMBERS, "nan": Specials.ONE_NAN, "ieee": Specials.IEEE}
_SCALES = {"e8m0": "E8M0", "ue4m3": "UE4M3", "e4m4": "E4M4", "f32": "Float32"}
TENSOR_SCALES = {"amax": TensorScale.FROM_LARGEST.name, "pow2": TensorScale.POWER.name}
_BFLOAT16_BITS = 8  # of a mantissa, with the one that is not stored
_SEARCHES = {"mse": Search.NEIGHBOURS, "four_over_six": Search.FOUR_OVER_SIX}


def cuda_format(format: Format) -> str:
    """A `Format` of numbers/format.cuh."""
    element = format.element
    if isinstance(element, Float):
        kind = (
            f"SmallFloat<{element.exponent},{element.mantissa},{_SPECIALS[element.specials].name}>"
        )
    else:
        kind = f"Codebook<{element.bits}>"
    return f"Format<{element.bits},{kind},{_SCALES[format.scale.name]},{format.block}>"


def fits_bfloat16(format: Format) -> bool:
    """Whether bfloat16 holds every value times its scale: products have the bits of both."""
    element, scale = format.element, format.scale
    bits = element.mantissa + 1 + scale.mantissa + 1 if isinstance(element, Float) else None
    return bits is not None and bits <= _BFLOAT16_BITS


def cuda_search(rule: str) -> str:
    """The name of a `Search`."""
    return _SEARCHES.get(rule, Search.FROM_AMAX).name


def carry_mantissa(format: Format, rule: str) -> int:
    """The mantissa of amax, as an integer, from which a power-of-two scale is the next one."""
    if not format.scale.power_of_two:
        return 0
    return math.ceil((carry_from(format, "absmax" if rule in _SEARCHES else rule) - 1) * 2**23)
