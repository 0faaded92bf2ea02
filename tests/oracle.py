"""Definitions written a second time, slowly and without the library's numerics.

Rounding is a brute-force search for the nearest value in float64; small-float casts are those of
ml_dtypes; exponents come from exact rational arithmetic.
"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

ML_DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}


def values_of(element_name: str) -> np.ndarray:
    """Every code of an element as float64, by ml_dtypes."""
    dtype = ML_DTYPES[element_name]
    bits = ml_dtypes.finfo(dtype).bits
    return np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)


def nearest_code(x: np.ndarray, magnitudes: np.ndarray, sign_shift: int) -> np.ndarray:
    """Nearest magnitude, ties to the even code, sign in front: a search over all of them."""
    distance = np.abs(np.abs(x.astype(np.float64))[..., None] - magnitudes)
    best = distance.min(-1, keepdims=True)
    tied = distance == best
    even_first = np.where(tied, np.arange(len(magnitudes)) % 2, 2)
    code = even_first.argmin(-1)
    return (code | (np.signbit(x).astype(np.int64) << sign_shift)).astype(np.uint8)


def codebook_code(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The number of midpoints strictly below x."""
    table = table.astype(np.float64)
    middle = (table[:-1] + table[1:]) / 2
    return (middle < x.astype(np.float64)[..., None]).sum(-1).astype(np.uint8)


def e4m4_decode(byte: int) -> float:
    e, m = byte >> 4, byte & 15
    return 2.0 ** (e - 11) * (1 + m / 16) if e else 2.0**-10 * m / 16


def e4m4_encode(x: float) -> int:
    """Exponent floor(log2), mantissa rounded half to even and clamped at 15, saturating at 31."""
    if x == 0:
        return 0
    if math.isinf(x) or x >= 32:
        return 255
    exponent = math.frexp(x)[1] - 1
    if exponent < -10:
        return min(round(Fraction(x) * 2**14), 15)
    mantissa = round((Fraction(x) / Fraction(2) ** exponent - 1) * 16)
    return (exponent + 11) << 4 | min(mantissa, 15)


def mx_exponent(amax: float, rule: str, maximum: float, mantissa: int) -> int:
    """The scale exponent of an MX block, in rationals; not clamped."""
    emax = math.frexp(maximum)[1] - 1
    exponent = math.frexp(amax)[1] - 1
    if rule == "floor":
        return exponent - emax
    if rule == "rceil":
        e = exponent - emax - 2
        while Fraction(2) ** e * Fraction(maximum) < Fraction(amax):
            e += 1
        return e
    steps = Fraction(amax) / Fraction(2) ** exponent * 2**mantissa
    rounded = Fraction(round(steps)) / 2**mantissa * Fraction(2) ** exponent
    return math.frexp(float(rounded))[1] - 1 - emax
