"""How many slices of eight bits the values of a weight are cut into, for the algorithm `slices`.

The native library decides it at every call, from the table that the weight has and from k
(csrc/products/slice_table.h, which has the reasons). This is the same for the table of the format,
so that a choice knows what it would cost. A codebook of the weight's own may take another number;
one that cannot be cut is streamed.
"""

from __future__ import annotations

from functools import cache
from math import frexp, inf, ldexp

from blockscale.formats import Codebook, Float, Format
from blockscale.formats.elements import to_float32

_UNITS_TRIED = 128
_LEAST_UNIT, _LARGEST_UNIT = 2.0**-40, 2.0**20


def weight_slices(format: Format, k: int) -> int:
    """0 where the weight cannot be multiplied so."""
    element = format.element
    if element.bits > 6:
        return 0
    slices = _slices(element, k)
    if format.block >= 32:
        return slices
    return slices if (format.block, element.bits, slices) == (16, 4, 1) else 0


@cache
def _slices(element: Float | Codebook, k: int) -> int:
    values = tuple(sorted({abs(value) for value in element.values} - {0.0}))
    if not values or values[-1] == inf:
        return 0
    smallest, largest = values[0], values[-1]
    unit = ldexp(1.0, frexp(largest)[1] - 1)
    while largest / unit <= _largest_of(2):
        if _close_to_integers(values, unit, 0.0):
            one = element.bits in (4, 6) and largest / unit <= _largest_of(1)
            return _within(unit, 1 if one else 2)
        unit /= 2
    allowed = (0.375 * k - 18) * 2.0**-24
    for slices in (2, 3) if 3 <= element.bits <= 5 else (2,):
        most = _largest_of(slices)
        first = int(smallest / largest * most)
        for integer in range(first, max(first - _UNITS_TRIED, 0), -1):
            unit = to_float32(smallest / integer)
            if largest / unit < most + 0.5 and _close_to_integers(values, unit, allowed):
                return _within(unit, slices)
    return 0


def _largest_of(slices: int) -> int:
    return 127 * sum(1 << 8 * each for each in range(slices))


def _within(unit: float, slices: int) -> int:
    return slices if _LEAST_UNIT <= unit <= _LARGEST_UNIT else 0


def _close_to_integers(values: tuple[float, ...], unit: float, allowed: float) -> bool:
    quotients = (value / unit for value in values)
    return all(abs(each - round(each)) <= allowed * each for each in quotients)
