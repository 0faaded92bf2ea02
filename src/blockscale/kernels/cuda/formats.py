"""Formats and scale rules in the terms of the CUDA sources: types that a kernel is compiled for."""

from __future__ import annotations

import math

from blockscale.formats import Float, Format
from blockscale.numerics import carry_from

_SPECIALS = {"none": "NUMBERS", "nan": "ONE_NAN", "ieee": "IEEE"}
_SCALES = {"e8m0": "E8M0", "ue4m3": "UE4M3", "e4m4": "E4M4", "f32": "Float32"}
TENSOR_SCALES = {"amax": "FROM_LARGEST", "pow2": "POWER"}  # a `TensorScale` of tensor_scale.cuh
_SEARCHES = {"mse": "NEIGHBOURS", "four_over_six": "FOUR_OVER_SIX"}


def cuda_format(format: Format) -> str:
    """A `Format` of format.cuh."""
    element = format.element
    if isinstance(element, Float):
        kind = f"SmallFloat<{element.exponent},{element.mantissa},{_SPECIALS[element.specials]}>"
    else:
        kind = f"Codebook<{element.bits}>"
    return f"Format<{element.bits},{kind},{_SCALES[format.scale.name]},{format.block}>"


def cuda_search(rule: str) -> str:
    """A `Search` of quantize_block.cuh."""
    return _SEARCHES.get(rule, "FROM_AMAX")


def carry_mantissa(format: Format, rule: str) -> int:
    """The mantissa of amax, as an integer, from which a power-of-two scale is the next one."""
    if not format.scale.power_of_two:
        return 0
    return math.ceil((carry_from(format, "absmax" if rule in _SEARCHES else rule) - 1) * 2**23)
