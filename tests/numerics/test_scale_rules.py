"""Block scales and tensor scales against definitions written a second time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
import oracle

MX = [bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.MXFP8, bs.MXFP8_E5M2]
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def mx_scale(x, fmt, rule):
    """Scale bytes of each block of 32, by the oracle."""
    element = fmt.element
    bits = element.mantissa
    if rule == "even1" and element.bits != 6:
        bits = 1
    codes = []
    for block in x.reshape(-1, 32):
        amax = float(np.abs(block).max())
        exponent = -999 if amax == 0 else oracle.mx_exponent(amax, rule, element.max, bits)
        exponent = min(exponent, 127 - element.max_exponent)  # beyond it element.max is Inf
        codes.append(max(exponent + 127, 0))
    return np.array(codes, dtype=np.uint8).reshape(x.shape[0], -1)


@pytest.mark.parametrize("rule", ["floor", "rceil", "even", "even1"])
@pytest.mark.parametrize("fmt_", MX, ids=str)
def test_power_of_two_rules(fmt_, rule):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(64, 128)) * np.exp2(rng.integers(-40, 40, (64, 1)))).astype(np.float32)
    # amax exactly at, just below and just above each value and midpoint of the element
    values = np.array(fmt_.element.magnitudes[1:])
    edge = np.concatenate([values, (values[:-1] + values[1:]) / 2]).astype(np.float32)
    edge = np.concatenate([edge, np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.inf)])
    edges = np.zeros((len(edge), 32), dtype=np.float32)
    edges[:, 5] = -edge
    for data in (x, edges):
        q = bs.quantize(torch.from_numpy(data), fmt_, scale=rule)
        np.testing.assert_array_equal(q.scale.numpy(), mx_scale(data, fmt_, rule))


@settings(max_examples=200, deadline=None)
@given(st.lists(finite, min_size=32, max_size=32), st.sampled_from(MX))
def test_power_of_two_rules_on_any_block(numbers, fmt_):
    x = np.array([numbers], dtype=np.float32)
    for rule in ("floor", "rceil", "even", "even1"):
        q = bs.quantize(torch.from_numpy(x), fmt_, scale=rule)
        np.testing.assert_array_equal(q.scale.numpy(), mx_scale(x, fmt_, rule))


def test_absmax_is_even_for_mxfp4_and_rceil_for_the_others():
    x = torch.randn(64, 256)
    for fmt_ in MX:
        rule = "even" if fmt_ is bs.MXFP4 else "rceil"
        assert bs.quantize(x, fmt_) == bs.quantize(x, fmt_, scale=rule)


def test_rceil_never_saturates_and_floor_does():
    x = torch.randn(64, 256)
    amax = x.unflatten(-1, (-1, 32)).abs().amax(-1)
    for fmt_ in MX:
        for rule, every in (("rceil", True), ("floor", False)):
            scale = torch.exp2(bs.quantize(x, fmt_, scale=rule).scale.double() - 127)
            covered = amax <= scale * fmt_.element.max
            assert bool(covered.all()) == every or fmt_.element.max == 7.5


def test_a_given_tensor_scale_reaches_every_scale_element(fmt):
    if not fmt.has_tensor_scale:
        pytest.skip("no tensor scale")
    x = torch.randn(16, 256)
    free = bs.quantize(x, fmt)
    for g in (0.25, 0.3, 2.0):
        error = (bs.quantize(x, fmt, tensor_scale=g).dequantize() - x).norm()
        assert error < 4 * (free.dequantize() - x).norm()
    # a power of two changes nothing but the tensor scale itself
    one, four = (bs.quantize(x * s, fmt, tensor_scale=s) for s in (1.0, 4.0))
    assert torch.equal(one.codes, four.codes)
    assert torch.equal(one.scale, four.scale)


def test_finite_values_stay_finite(fmt):
    """At the edge of float32 an amax saturates rather than become Inf."""
    for largest in (torch.finfo(torch.float32).max, 3.2e38, 2.0**127):
        x = torch.randn(4, 256)
        x[::2, 5] = largest
        x[1, 7] = -largest
        y = bs.quantize(x, fmt).dequantize()
        assert y.isfinite().all()
        assert (y[0, 5] / largest).item() > 0.49  # E8M0 with a codebook ends at 2^127


def nvfp4_by_numpy(x, g=None):
    """formats: two float32 quotients, E4M3 and E2M1 by ml_dtypes."""
    f32 = np.float32
    if g is None:
        amax = np.abs(x).max()
        with np.errstate(over="ignore"):
            g = f32(1) if amax == 0 else f32(1) / np.minimum(f32(2688) / amax, np.finfo(f32).max)
    blocks = x.reshape(x.shape[0], -1, 16)
    amax = np.abs(blocks).max(-1)
    with np.errstate(over="ignore"):
        wanted = (amax / f32(6)).astype(f32) / f32(g)
    wanted = np.where(amax > 0, np.clip(wanted, 2.0**-9, 448), 0).astype(f32)
    scale = wanted.astype(oracle.ML_DTYPES["e4m3"])
    divisor = (scale.astype(f32) * f32(g)).astype(f32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(divisor == 0, f32(0) * blocks, blocks / divisor)
    codes = np.clip(ratio, -6, 6).astype(oracle.ML_DTYPES["e2m1"]).view(np.uint8)
    return codes.reshape(x.shape), scale.view(np.uint8), f32(g)


def assert_is_nvfp4(x, tensor_scale=None):
    q = bs.quantize(torch.from_numpy(x), bs.NVFP4, tensor_scale=tensor_scale)
    codes, scale, g = nvfp4_by_numpy(x, tensor_scale)
    assert q.tensor_scale.numpy() == g
    np.testing.assert_array_equal(q.scale.numpy(), scale)
    np.testing.assert_array_equal(q.layout.unpack_codes(q.codes, q.format, q.shape).numpy(), codes)


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-3, 1.0, 1e4, 1e35])
def test_nvfp4(size):
    x = np.random.default_rng(1).normal(size=(32, 256)).astype(np.float32) * np.float32(size)
    x[3] = 0
    x[4, 16:32] *= np.float32(1e-6)
    assert_is_nvfp4(x)


@settings(max_examples=200, deadline=None)
@given(st.lists(finite, min_size=48, max_size=48), st.sampled_from([None, 1.0, 0.003, 7.5]))
def test_nvfp4_on_any_block(numbers, tensor_scale):
    assert_is_nvfp4(np.array([numbers], dtype=np.float32), tensor_scale)


def test_the_float32_roundings_of_the_definition_are_there():
    """Each of the three roundings decides a code somewhere: find such places, and check them."""
    rng, f32, g = np.random.default_rng(0), np.float32, np.float32(0.3)
    e4m3, e2m1 = oracle.ML_DTYPES["e4m3"], oracle.ML_DTYPES["e2m1"]

    # fp32(fp32(amax / 6) / g): amax beside a tie of E4M3
    ties = np.array([(17 + 2 * i) / 16 for i in range(8)])
    amax = rng.choice(ties, 400_000) * 6 * g * (1 + rng.integers(-4, 5, 400_000) * 2.0**-24)
    amax = amax.astype(f32)
    defined = ((amax / f32(6)).astype(f32) / g).astype(e4m3).view(np.uint8)
    unrounded = (amax.astype(np.float64) / 6 / g).astype(f32).astype(e4m3).view(np.uint8)
    where = np.flatnonzero(defined != unrounded)[:50]
    assert len(where) > 0
    x = np.zeros((len(where), 16), dtype=f32)
    x[:, 0] = amax[where]
    got = bs.quantize(torch.from_numpy(x), bs.NVFP4, tensor_scale=float(g))
    np.testing.assert_array_equal(got.scale[:, 0].numpy(), defined[where])

    # fp32(x / fp32(scale * g)): x beside a tie of E2M1, without the one or the other rounding
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    found = [0, 0]
    for code in range(48, 64):
        scale = np.array(code, dtype=np.uint8).view(e4m3).astype(f32)
        divisor = f32(scale * g)
        x = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])[:, None] * np.float64(scale * g)
        x = (x * (1 + np.arange(-6, 7) * 2.0**-24)).astype(f32).flatten()
        defined = (x / divisor).astype(e2m1).view(np.uint8)
        exact_divisor = (x / (np.float64(scale) * np.float64(g))).astype(f32)
        exact_quotient = x.astype(np.float64) / divisor
        for i, unrounded in enumerate((exact_divisor, exact_quotient)):
            found[i] += int((defined != oracle.nearest_code(unrounded, values, 3)).sum())
        block = np.zeros((len(x), 16), dtype=f32)
        block[:, 0], block[:, 1] = f32(6.0) * divisor, x
        q = bs.quantize(torch.from_numpy(block), bs.NVFP4, tensor_scale=float(g))
        assert (q.scale[:, 0] == code).all()
        codes = q.layout.unpack_codes(q.codes, q.format, q.shape)
        np.testing.assert_array_equal(codes[:, 1].numpy(), defined)
    assert min(found) > 0


def test_nvfp4_tensor_scale_and_its_reciprocal_are_both_float32():
    for amax in (1.0, 3.3, 448.0, 1e-6, 123456.0):
        x = torch.full((1, 16), amax)
        g = bs.quantize(x, bs.NVFP4).tensor_scale
        r = 1 / g
        assert 1 / r == g


def test_nvfp4_scale_is_at_least_the_smallest_unless_the_block_is_zero():
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 16], x[0, 32] = 1.0, 1e-7, 1e-30
    assert bs.quantize(x, bs.NVFP4).scale.tolist() == [[126, 1, 1, 0]]


def kbit_by_numpy(x, fmt_, g):
    table = np.array(fmt_.element.values)
    blocks = x.reshape(-1, fmt_.block).astype(np.float64)
    codes, scales = [], []
    for block in blocks:
        amax = float(np.float32(np.abs(block).max() / g))
        byte = oracle.e4m4_encode(amax)
        divisor = np.float32(oracle.e4m4_decode(byte) * g)
        ratio = np.zeros_like(block) if divisor == 0 else (block / divisor).astype(np.float32)
        codes.append(oracle.codebook_code(ratio, table))
        scales.append(byte)
    return np.array(codes).reshape(x.shape), np.array(scales).reshape(x.shape[0], -1)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("size", "g"), [(1.0, 1.0), (0.02, 1.0), (30.0, None), (1e-9, None), (1e20, None)]
)
def test_kbit(k, size, g):
    fmt_ = bs.format(f"kbit{k}")
    x = (np.random.default_rng(k).normal(size=(16, 128)) * size).astype(np.float32)
    x[2], x[3, 32:64] = 0, x[3, 32:64] * np.float32(1e-5)
    q = bs.quantize(torch.from_numpy(x), fmt_)
    scale = q.tensor_scale.item()
    if g is not None:
        assert scale == g
    else:
        assert math.frexp(scale)[0] == 0.5  # a power of two
        assert 8 <= np.abs(x).max() / scale < 16
    codes, scales = kbit_by_numpy(x, fmt_, scale)
    np.testing.assert_array_equal(q.scale.numpy(), scales)
    np.testing.assert_array_equal(q.layout.unpack_codes(q.codes, q.format, q.shape).numpy(), codes)


@pytest.mark.parametrize(("amax", "g"), [(2.0**-6, 1), (31.0, 1), (31.5, 2), (2.0**-6.01, 2**-10)])
def test_kbit_tensor_scale_is_one_inside_the_comfortable_range(amax, g):
    x = torch.zeros(2, 32)
    x[0, 0] = amax
    assert bs.quantize(x, bs.KBIT4).tensor_scale.item() == g


def test_off_scale_data_is_as_accurate_as_any():
    x = torch.randn(64, 256)
    near = bs.quantize(x, bs.KBIT4).dequantize()
    far = bs.quantize(x * 2.0**40, bs.KBIT4).dequantize() / 2.0**40
    assert torch.allclose(near, far, atol=1e-6)


def test_every_rule_says_where_it_applies():
    x = torch.randn(2, 64)
    for rule, fmt_ in [
        ("floor", bs.NVFP4),
        ("four_over_six", bs.MXFP4),
        ("even", bs.KBIT4),
        ("mse", bs.BNB_NF4),
        ("best", bs.NVFP4),
    ]:
        with pytest.raises(
            ValueError, match=f"scale='{rule}' does not apply to {fmt_}: use one of"
        ):
            bs.quantize(x, fmt_, scale=rule)
