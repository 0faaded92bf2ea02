"""encode: the nearest code of every element, against a brute-force search."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from blockscale.formats import BNB_FP4, E4M4, FLOATS, KBIT3, SCALES, UE4M3, Float, normal_float
from blockscale.numerics import decode, encode, widen

ELEMENTS = [*FLOATS.values(), Float(name="e3m3", exponent=3, mantissa=3)]


def interesting(element):
    """Every value, every midpoint, and the floats beside both."""
    values = np.array(element.magnitudes)
    points = np.concatenate([values, (values[:-1] + values[1:]) / 2]).astype(np.float32)
    up, down = np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))
    far = np.array([element.max * 1.5, 3e38, np.inf, 1e-45], dtype=np.float32)
    every = np.concatenate([points, up, down, far])
    return np.concatenate([every, -every])


def check(element, x):
    got = encode(torch.from_numpy(x.astype(np.float64)), element).numpy()
    clipped = np.clip(x, -element.max, element.max)  # finite overflow saturates
    expected = oracle.nearest_code(clipped, np.array(element.magnitudes), element.magnitude_bits)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
def test_values_and_ties(element):
    check(element, interesting(element))


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
def test_every_float16_and_bfloat16(element):
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        x = x[~x.isnan()].float().numpy()
        for part in np.array_split(x, 8):
            check(element, part)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=64))
def test_any_float32(element, numbers):
    check(element, np.array(numbers, dtype=np.float32))


@pytest.mark.parametrize("element", FLOATS.values(), ids=lambda e: e.name)
def test_ml_dtypes_rounds_alike(element):
    x = np.random.default_rng(0).normal(size=20000).astype(np.float32) * element.max / 3
    x = np.clip(x, -element.max, element.max)
    got = encode(torch.from_numpy(x.astype(np.float64)), element).numpy()
    np.testing.assert_array_equal(got, x.astype(oracle.ML_DTYPES[element.name]).view(np.uint8))


def test_codes_decode_and_encode_to_themselves():
    for element in (*ELEMENTS, UE4M3, E4M4):
        codes = torch.arange(1 << element.bits, dtype=torch.uint8)
        value = decode(codes, element)
        kept = value.isfinite()
        assert torch.equal(encode(value[kept], element), codes[kept])


def test_ue4m3_rounds_like_e4m3():
    x = np.abs(interesting(UE4M3))
    got = encode(torch.from_numpy(x.astype(np.float64)), UE4M3).numpy()
    expected = np.clip(x, 0, 448).astype(oracle.ML_DTYPES["e4m3"]).view(np.uint8)
    np.testing.assert_array_equal(got, expected)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(min_value=0, width=32, allow_nan=False), min_size=1, max_size=32))
def test_e4m4_rounds_as_specified(numbers):
    got = encode(torch.tensor(numbers, dtype=torch.float64), E4M4)
    assert got.tolist() == [oracle.e4m4_encode(number) for number in numbers]


def test_e4m4_at_its_edges():
    values = np.array(E4M4.magnitudes)
    points = np.concatenate([values, (values[:-1] + values[1:]) / 2, [31.4, 31.9, 32.0, 1e9]])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, 1e9)])
    points = np.abs(points)
    got = encode(torch.from_numpy(points), E4M4)
    assert got.tolist() == [oracle.e4m4_encode(point) for point in points.tolist()]
    # no carry: just below a power of two the mantissa stays at 15
    assert decode(encode(torch.tensor([1.9999], dtype=torch.float64), E4M4), E4M4).item() == 1.9375


@pytest.mark.parametrize("element", [normal_float(k) for k in (2, 3, 4, 5)] + [BNB_FP4.element])
def test_codebooks_take_the_nearest_entry(element):
    table = np.array(element.values)
    middle = (table[:-1] + table[1:]) / 2
    x = np.concatenate([table, middle, np.nextafter(middle, 2), np.nextafter(middle, -2), [-9, 9]])
    x = np.concatenate([x, np.random.default_rng(0).uniform(-1.2, 1.2, 4000)])
    got = encode(torch.from_numpy(x), element).numpy()
    np.testing.assert_array_equal(got, oracle.codebook_code(x, table))
    error = np.abs(table[got] - x)
    assert (error <= np.abs(x[:, None] - table).min(-1) + 1e-15).all()


def test_a_tensors_own_codebook_comes_first():
    table = torch.tensor([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])
    codes = torch.arange(8, dtype=torch.uint8)
    assert torch.equal(decode(codes, KBIT3.element, table).float(), table)
    assert torch.equal(encode(widen(table), KBIT3.element, table), codes)


def test_scales_are_unsigned_bytes_or_float32():
    assert {name: scale.bits for name, scale in SCALES.items()} == {
        "e8m0": 8,
        "ue4m3": 8,
        "e4m4": 8,
        "f32": 32,
    }
