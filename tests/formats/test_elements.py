import itertools
import math

import numpy as np
import pytest

import oracle
from blockscale.formats import (
    E2M1,
    E4M4,
    E5M2,
    E8M0,
    F32,
    FLOATS,
    UE4M3,
    Codebook,
    Float,
    normal_float,
)


@pytest.mark.parametrize("element", FLOATS.values(), ids=lambda e: e.name)
def test_every_code_decodes_as_in_ml_dtypes(element):
    ours, theirs = np.array(element.values), oracle.values_of(element.name)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


def test_e8m0_decodes_as_in_ml_dtypes():
    np.testing.assert_array_equal(np.array(E8M0.values), oracle.values_of("e8m0"))


def test_ue4m3_is_e4m3_without_sign():
    np.testing.assert_array_equal(np.array(UE4M3.values)[:128], oracle.values_of("e4m3")[:128])
    assert all(math.isnan(value) for value in UE4M3.values[128:])


def test_e4m4_decodes_as_specified():
    assert E4M4.values == tuple(oracle.e4m4_decode(byte) for byte in range(256))
    assert (E4M4.max, E4M4.smallest, E4M4.smallest_normal) == (31.0, 2.0**-14, 2.0**-10)


# element, bits, max, bias, smallest, smallest normal, exponent of max
@pytest.mark.parametrize(
    ("name", "bits", "maximum", "bias", "smallest", "normal", "emax"),
    [
        ("e2m1", 4, 6, 1, 0.5, 1.0, 2),
        ("e2m3", 6, 7.5, 1, 0.125, 1.0, 2),
        ("e3m2", 6, 28, 3, 0.0625, 0.25, 4),
        ("e4m3", 8, 448, 7, 2**-9, 2**-6, 8),
        ("e5m2", 8, 57344, 15, 2**-16, 2**-14, 15),
    ],
)
def test_derived_numbers(name, bits, maximum, bias, smallest, normal, emax):
    e = FLOATS[name]
    assert (e.bits, e.max, e.bias, e.max_exponent) == (bits, maximum, bias, emax)
    assert (e.smallest, e.smallest_normal) == (smallest, normal)


def test_float32_scale_has_the_limits_of_float32():
    assert F32.bits == 32
    assert F32.max == float(np.finfo(np.float32).max)
    assert F32.smallest_normal == 2.0**-126
    assert F32.nan_code == 0x7FC00000


def test_nan_codes():
    assert (E8M0.nan_code, UE4M3.nan_code, E4M4.nan_code, E5M2.nan_code) == (255, 127, None, 0x7E)
    assert math.isnan(E5M2.values[0x7E])


def test_e2m1_rounding_points():
    """Bounds and where their ties go: .25 .75 1.25 1.75 2.5 3.5 5 -> 0 1 1 2 2 4 4."""
    bounds = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    ties = [sum(b < bound for b in E2M1.boundaries) for bound in bounds]
    assert [E2M1.magnitudes[code] for code in ties] == [0, 1, 1, 2, 2, 4, 4]


def test_any_widths_make_a_float():
    e = Float(name="e3m4", exponent=3, mantissa=4)
    assert (e.bits, e.bias, e.max) == (8, 3, 31.0)
    with pytest.raises(ValueError, match="at least 1 exponent bit"):
        Float(name="bad", exponent=0, mantissa=3)
    with pytest.raises(ValueError, match="at most 8 bits"):
        Float(name="bad", exponent=6, mantissa=3, signed=False)


def test_normal_float_is_symmetric_sorted_and_normalised():
    for bits in range(2, 6):
        values = normal_float(bits).values
        assert len(values) == 1 << bits
        assert values[-1] == 1.0
        assert all(a < b for a, b in itertools.pairwise(values))
        assert values == tuple(-v for v in reversed(values))
    # mid-quantiles of N(0, 1): 0.625 and 0.875 for two bits
    assert normal_float(2).values[2] == pytest.approx(0.31863936 / 1.15034938, abs=1e-7)


@pytest.mark.parametrize(
    ("bits", "values", "message"),
    [
        (2, (-1.0, 0.0, 1.0), "2 bits need 4 values, got 3"),
        (2, (-1.0, 0.5, 0.0, 1.0), "values must ascend, but 0.5 at index 1 is above 0.0"),
        (2, (-1.0, 0.0, 0.5, 1.5), r"must lie in \[-1, 1\], got 1.5 at index 3"),
        (2, (-1.0, 0.0, math.nan, 1.0), "got nan at index 2"),
        (9, (0.0,), "bits must be 1 to 8"),
    ],
)
def test_bad_codebooks_are_refused(bits, values, message):
    with pytest.raises(ValueError, match=message):
        Codebook(bits=bits, values=values)


def test_codebook_values_are_float32():
    value = Codebook(bits=1, values=(-0.1, 0.1)).values[1]
    assert value == float(np.float32(0.1))
