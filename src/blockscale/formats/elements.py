"""What one code means: small floats and codebooks, described by data alone.

A float element is fixed by its exponent and mantissa widths and three flags; everything else (its
values, its maximum, the points where rounding changes) is derived here, once, with exact Python
arithmetic. A codebook element is a sorted table. Both answer the same two questions:

    values      what each code decodes to
    boundaries  code = the number of boundaries strictly below the number being rounded

so the rest of the library rounds every element with one search and decodes with one look-up.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

Specials = Literal["none", "nan", "ieee"]
NormalFloat = Literal["mid_quantiles", "bin_means"]


def to_float32(value: float) -> float:
    """The nearest float32, as a Python float."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


@dataclass(frozen=True, kw_only=True)
class Float:
    """A binary float. Elements and 8-bit scales are listed code by code; F32 is only ever a scale.

    specials  "none": every code is a finite number; "nan": the all-ones magnitude is NaN (the "fn"
              types); "ieee": the top exponent holds Inf (mantissa 0) and NaN.
    zero      False for E8M0, whose code 0 is a power of two like the others.
    carry     False for E4M4, whose rounding stays inside a binade: the mantissa is clamped at its
              top instead of carrying into the next exponent.
    shift     added to the IEEE bias, 2^(exponent - 1) - 1; only E4M4 has one.
    """

    name: str
    exponent: int
    mantissa: int
    signed: bool = True
    specials: Specials = "none"
    zero: bool = True
    carry: bool = True
    shift: int = 0

    def __post_init__(self) -> None:
        if self.exponent < 1 or self.mantissa < 0:
            raise ValueError(
                f"{self.name}: a float needs at least 1 exponent bit and 0 mantissa bits, "
                f"got {self.exponent} and {self.mantissa}"
            )
        if not self.signed and self.magnitude_bits > 8:
            raise ValueError(f"{self.name}: an unsigned scale has at most 8 bits")

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1 + self.shift

    @property
    def bits(self) -> int:
        """Bits a code occupies. Unsigned scales keep the byte of their signed cousin."""
        return 8 if not self.signed else 1 + self.exponent + self.mantissa

    @property
    def magnitude_bits(self) -> int:
        return self.exponent + self.mantissa

    def _magnitude(self, code: int) -> float:
        exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        top = (1 << self.exponent) - 1
        if self.specials == "nan" and code == (1 << self.magnitude_bits) - 1:
            return math.nan
        if self.specials == "ieee" and exponent == top:
            return math.inf if fraction == 0 else math.nan
        if exponent == 0 and self.zero:
            return math.ldexp(fraction, 1 - self.bias - self.mantissa)
        return math.ldexp((1 << self.mantissa) + fraction, exponent - self.bias - self.mantissa)

    @cached_property
    def magnitudes(self) -> tuple[float, ...]:
        """The finite non-negative values, ascending; index = code without sign."""
        return tuple(self._magnitude(code) for code in range(self.max_code + 1))

    @cached_property
    def values(self) -> tuple[float, ...]:
        """What each code decodes to. Codes that an unsigned scale leaves unused are NaN."""
        half = [self._magnitude(code) for code in range(1 << self.magnitude_bits)]
        if self.signed:
            return tuple(half + [-value for value in half])
        return tuple(half + [math.nan] * ((1 << self.bits) - len(half)))

    @cached_property
    def boundaries(self) -> tuple[float, ...]:
        """Rounding to nearest, ties to the even code, as thresholds for the magnitude.

        A number strictly above boundary j gets a code of at least j + 1. Midpoints whose tie must
        go up are therefore stepped down by one float64, which no float32 can fall between.
        """
        bounds = []
        for code, (low, high) in enumerate(pairwise(self.magnitudes)):
            starts_binade = (code + 1) & ((1 << self.mantissa) - 1) == 0
            if not self.carry and starts_binade:
                bounds.append(math.nextafter(high, 0.0))
            else:
                middle = (low + high) / 2
                bounds.append(middle if code % 2 == 0 else math.nextafter(middle, 0.0))
        return tuple(bounds)

    @property
    def max_code(self) -> int:
        """The code of the largest finite value, without sign."""
        everything = (1 << self.magnitude_bits) - 1
        unusable = {"none": 0, "nan": 1, "ieee": 1 << self.mantissa}
        return everything - unusable[self.specials]

    @property
    def max(self) -> float:
        return self._magnitude(self.max_code)

    @property
    def max_exponent(self) -> int:
        """floor(log2(max)); called emax in the OCP specification."""
        return math.frexp(self.max)[1] - 1

    @property
    def smallest(self) -> float:
        """The smallest positive value."""
        return self._magnitude(1 if self.zero else 0)

    @property
    def smallest_normal(self) -> float:
        return self._magnitude((1 << self.mantissa) if self.zero else 0)

    @property
    def nan_code(self) -> int | None:
        """The code that a block with NaN or Inf gets as its scale; None where there is no NaN."""
        if self.specials == "none":
            return None
        everything = (1 << self.magnitude_bits) - 1
        if self.specials == "nan":
            return everything
        return everything ^ ((1 << (self.mantissa - 1)) - 1)  # quiet NaN

    @property
    def power_of_two(self) -> bool:
        """True where every value is a power of two (E8M0)."""
        return self.mantissa == 0 and not self.zero


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """A table of 2^bits float32 values, ascending, in [-1, 1]; it need not be symmetric.

    The table here is the one new tensors get; a quantised tensor carries its own copy, and that
    copy is what decodes it. A table with a label of its own is always the same.
    """

    bits: int
    values: tuple[float, ...]
    label: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ValueError(f"codebook: bits must be 1 to 8, got {self.bits}")
        if len(self.values) != 1 << self.bits:
            raise ValueError(
                f"codebook: {self.bits} bits need {1 << self.bits} values, got {len(self.values)}"
            )
        for index, value in enumerate(self.values):
            if not -1.0 <= value <= 1.0:  # also refuses NaN
                raise ValueError(
                    f"codebook: values must lie in [-1, 1], got {value} at index {index}: "
                    "divide the table by its largest magnitude"
                )
        rounded = tuple(to_float32(value) for value in self.values)
        for index, (low, high) in enumerate(pairwise(rounded)):
            if low > high:
                raise ValueError(
                    f"codebook: values must ascend, but {low} at index {index} is above {high}: "
                    "sort the table"
                )
        object.__setattr__(self, "values", rounded)

    @property
    def name(self) -> str:
        return self.label or f"codebook{self.bits}"

    @cached_property
    def boundaries(self) -> tuple[float, ...]:
        """Midpoints of neighbours: a number on a midpoint takes the lower entry."""
        return tuple((low + high) / 2 for low, high in pairwise(self.values))

    @property
    def max(self) -> float:
        """The magnitude that a block's amax is mapped to."""
        return 1.0

    @property
    def max_exponent(self) -> int:
        return 0


def normal_float(bits: int, method: NormalFloat = "mid_quantiles") -> Codebook:
    """A codebook for N(0, 1) cut into 2^bits bins of equal probability. Symmetric, no zero.

    mid_quantiles   the median of each bin: the default, since the k-bit files and tensors that
                    there are have this table
    bin_means       the mean of each bin: the largest level lies further from the others

    Both are divided by the largest level. Which serves better depends on the data and on the bits:
    docs/compat.md has the measurements.
    """
    if method not in _LEVELS:
        raise ValueError(
            f"normal_float: method must be one of {', '.join(_LEVELS)}, got {method!r}"
        )
    upper = _LEVELS[method](1 << bits)
    half = [value / upper[-1] for value in upper]
    return Codebook(bits=bits, values=tuple([-value for value in reversed(half)] + half))


def _upper_medians(count: int) -> list[float]:
    return [NormalDist().inv_cdf((count // 2 + i + 0.5) / count) for i in range(count // 2)]


def _upper_means(count: int) -> list[float]:
    """The mean of N(0, 1) between a and b is (pdf(a) - pdf(b)) / (cdf(b) - cdf(a))."""
    normal = NormalDist()
    edges = [normal.inv_cdf(i / count) for i in range(count // 2, count)]
    densities = [*map(normal.pdf, edges), 0.0]
    return [(low - high) * count for low, high in pairwise(densities)]


_LEVELS: dict[str, Callable[[int], list[float]]] = {
    "mid_quantiles": _upper_medians,
    "bin_means": _upper_means,
}


# Even steps of 1/127; the code of -127 has a twin, 0.
INTEGERS = Codebook(bits=8, values=(-1.0, *(step / 127 for step in range(-127, 128))), label="int8")

E2M1 = Float(name="e2m1", exponent=2, mantissa=1)
E2M3 = Float(name="e2m3", exponent=2, mantissa=3)
E3M2 = Float(name="e3m2", exponent=3, mantissa=2)
E4M3 = Float(name="e4m3", exponent=4, mantissa=3, specials="nan")
E5M2 = Float(name="e5m2", exponent=5, mantissa=2, specials="ieee")

E8M0 = Float(name="e8m0", exponent=8, mantissa=0, signed=False, specials="nan", zero=False)
UE4M3 = Float(name="ue4m3", exponent=4, mantissa=3, signed=False, specials="nan")
E4M4 = Float(name="e4m4", exponent=4, mantissa=4, signed=False, carry=False, shift=4)
F32 = Float(name="f32", exponent=8, mantissa=23, specials="ieee")

FLOATS = {element.name: element for element in (E2M1, E2M3, E3M2, E4M3, E5M2)}
TABLES = {table.label: table for table in (INTEGERS,)}  # codebooks that have a name of their own
SCALES = {scale.name: scale for scale in (E8M0, UE4M3, E4M4, F32)}
