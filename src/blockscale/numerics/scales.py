"""How scales are chosen from the data.

Power-of-two scales (the MX formats) follow one of four published rules; the others encode
amax / element.max. All look at the amax of a block only. The searches that weigh the block's
squared error are in `quantize`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blockscale.formats import Float, Format
from blockscale.numerics.elements import encode
from blockscale.numerics.exact import exponent_of, power_of_two, round_to


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
        # The wanted scale is moved to [max/4, max/2), which leaves a binade above for a search,
        # unless that would take the largest product out of float32.
        element, scales = format.element, format.scale
        wanted = amax / element.max
        comfortable = (wanted >= 16 * scales.smallest_normal) & (wanted <= scales.max)
        shift = exponent_of(wanted) - (scales.max_exponent - 1)
        shift = shift.clamp(-149, 127 - scales.max_exponent - element.max_exponent)
        scale = torch.where(comfortable, 1.0, power_of_two(shift))
    return torch.where(amax == 0, 1.0, scale)


def block_scale(amax: Tensor, format: Format, tensor_scale: Tensor, rule: str) -> Tensor:
    """float64 amax of each block -> scale codes (uint8), or float64 numbers for F32 scales."""
    element, scale = format.element, format.scale
    if scale.power_of_two:
        return _power_of_two_scale(amax, format, rule)  # such formats have no tensor scale
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
    carries = fraction >= carry_from(format, rule)
    exponent = exponent + carries - element.max_exponent
    # With a larger exponent the largest code would decode to Inf: such an amax saturates instead.
    return (
        (exponent.clamp(max=127 - element.max_exponent) + scale.bias).clamp(min=0).to(torch.uint8)
    )


def carry_from(format: Format, rule: str) -> float:
    """The fraction of amax in [1, 2) from which its block takes the next power of two."""
    element, rule = format.element, absmax_rule(format) if rule == "absmax" else rule
    if rule == "floor":
        return 2.0
    if rule == "rceil":  # the least power of two that brings amax to element.max or below
        return math.nextafter(element.max / 2.0**element.max_exponent, 2.0)
    if rule in ("even", "even1") and isinstance(element, Float):
        # amax is rounded to so many mantissa bits first; compressed-tensors takes one, except for
        # its 6-bit type
        bits = 1 if rule == "even1" and element.bits != 6 else element.mantissa
        return 2.0 - 2.0 ** -(bits + 1)
    raise ValueError(f"scale={rule!r} does not apply to power-of-two scales of {element.name}")
