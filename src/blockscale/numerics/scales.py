"""How scales are chosen from the data.

Power-of-two scales (the MX formats) follow one of four published rules; the others encode
amax / element.max. All look at the amax of a block only. The searches that look at the block's
squared error are in `search`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale.formats import Codebook, Float, Format
from blockscale.numerics.elements import encode
from blockscale.numerics.exact import exponent_of, power_of_two, round_to

POWER_OF_TWO_RULES = ("floor", "rceil", "even", "even1")


def absmax_rule(format: Format) -> str:
    """What "absmax" means for power-of-two scales: the better rule on Gaussian data.

    With a single mantissa bit, covering the amax (`rceil`) wastes a binade too often.
    """
    return "even" if format.element.bits <= 4 and isinstance(format.element, Float) else "rceil"


def choose_tensor_scale(amax: Tensor, format: Format) -> Tensor:
    """float64 amax -> float64 tensor scale, a float32 number; 1 where amax is 0."""
    if format.tensor_scale == "amax":
        # 1 / fp32(max / amax): the one form whose value and whose reciprocal are both float32, so
        # that files may store either. Tiny amax would overflow the quotient: it saturates.
        largest = format.element.max * format.scale.max
        reciprocal = round_to(largest / amax).clamp(max=torch.finfo(torch.float32).max)
        scale = round_to(1.0 / reciprocal)
    else:
        # The amax is moved to [max/4, max/2), which leaves a binade above for a scale search.
        comfortable = (amax >= 16 * format.scale.smallest_normal) & (amax <= format.scale.max)
        shift = exponent_of(amax) - (format.scale.max_exponent - 1)
        scale = torch.where(comfortable, 1.0, power_of_two(shift.clamp(-149, 127)))
    return torch.where(amax == 0, 1.0, scale)


def block_scale(amax: Tensor, format: Format, tensor_scale: Tensor, rule: str) -> Tensor:
    """float64 amax of each block -> scale codes (uint8), or float64 numbers for F32 scales."""
    element, scale = format.element, format.scale
    if scale.power_of_two:
        return _power_of_two_scale(amax, format, absmax_rule(format) if rule == "absmax" else rule)
    wanted = round_to(round_to(amax / element.max) / tensor_scale)
    if scale.bits == 32:
        return wanted
    if isinstance(element, Float):
        # Zero is among the codes, so the smallest scale is never worse than a scale of zero. A
        # codebook may have no zero: there a block too small for the scale decodes to zeros.
        wanted = torch.where(amax > 0, wanted.clamp(min=scale.smallest), wanted)
    return encode(wanted, scale)


def _power_of_two_scale(amax: Tensor, format: Format, rule: str) -> Tensor:
    element, scale = format.element, format.scale
    exponent = exponent_of(amax)
    fraction = amax / power_of_two(exponent.clamp(min=-1022))  # in [1, 2)
    if rule == "rceil":  # the least power of two that brings amax to element.max or below
        exponent = exponent + (fraction > element.max / 2.0**element.max_exponent)
    elif rule != "floor":  # amax, rounded to so many mantissa bits, reaches the next power of two
        exponent = exponent + (fraction >= 2.0 - 2.0 ** -(_rounding_bits(element, rule) + 1))
    return (exponent - element.max_exponent + scale.bias).clamp(0, scale.max_code).to(torch.uint8)


def _rounding_bits(element: Float | Codebook, rule: str) -> int:
    """The element's own mantissa bits; compressed-tensors takes one, except for its 6-bit type."""
    if isinstance(element, Codebook) or (rule == "even1" and element.bits != 6):
        return 1
    return element.mantissa
