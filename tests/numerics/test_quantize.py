"""quantize and dequantize as a whole: every format, special values, settings, dtypes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs

# dB on Gaussian data; a little under what was measured with 2M samples.
SQNR_FLOOR = {
    "nvfp4": 20.3,
    "mxfp4": 18.9,
    "mxfp6_e2m3": 30.8,
    "mxfp6_e3m2": 25.4,
    "mxfp8": 31.4,
    "mxfp8_e5m2": 25.4,
    "kbit2": 7.3,
    "kbit3": 14.9,
    "kbit4": 21.0,
    "kbit5": 26.1,
    "bnb_nf4": 20.6,
    "bnb_fp4": 18.1,
}


def sqnr(x, y):
    return 10 * math.log10(x.double().square().sum() / (x.double() - y.double()).square().sum())


def codes_of(q):
    return q.layout.unpack_codes(q.codes, q.format, q.shape)


@pytest.mark.parametrize("name", SQNR_FLOOR)
def test_sqnr_on_gaussian_data(name):
    x = torch.randn(512, 512)
    assert sqnr(x, bs.quantize(x, name).dequantize()) > SQNR_FLOOR[name]


def test_what_the_format_holds_comes_back_exactly(fmt):
    """Where rounding a block cannot move its amax to another step, quantising again is free."""
    if fmt.is_codebook or not (fmt.scale.power_of_two or fmt.element.name == "e2m1"):
        pytest.skip("rounding may move the amax to another step")
    q = bs.quantize(torch.randn(8, 256), fmt)
    y = q.dequantize()
    assert torch.equal(bs.quantize(y, fmt, tensor_scale=q.tensor_scale).dequantize(), y)


def test_dequantize_is_two_float32_products_and_a_cast(fmt):
    q = bs.quantize(torch.randn(4, 256) * 3, fmt)
    table = np.array(fmt.element.values, dtype=np.float32)
    value = table[codes_of(q).numpy()].reshape(4, -1, fmt.block)
    if fmt.scale.bits == 32:
        scale = q.scale.numpy().view(np.float32)
    else:
        scale = np.array(fmt.scale.values, dtype=np.float32)[q.scale.numpy()]
    y = (value * scale[..., None]).reshape(4, 256)
    if q.tensor_scale is not None:
        y = y * q.tensor_scale.numpy()
    assert y.dtype == np.float32
    np.testing.assert_array_equal(q.dequantize().numpy(), y)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(q.dequantize(dtype), torch.from_numpy(y).to(dtype))


def test_both_float32_products_round():
    """decode * scale of a codebook is not exact, and neither is its product with 0.3."""
    q = bs.quantize(torch.randn(64, 256), bs.KBIT4, tensor_scale=0.3)
    table, scales = (np.array(v) for v in (bs.KBIT4.element.values, bs.KBIT4.scale.values))
    exact = table[codes_of(q).numpy()] * scales[q.scale.numpy()].repeat(32, -1)
    g = np.float32(0.3)
    twice = exact.astype(np.float32) * g
    once = (exact * np.float64(g)).astype(np.float32)
    assert (twice != once).any()
    np.testing.assert_array_equal(q.dequantize().numpy(), twice)


def test_short_inputs_quantize_like_their_float32_values(fmt):
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(4, 256).to(dtype)
        assert bs.quantize(x, fmt) == bs.quantize(x.float(), fmt)


def test_leading_dimensions_have_their_own_tensor_scales(fmt):
    x = torch.randn(2, 3, 4, 256) * torch.tensor([1.0, 100.0, 1e-5]).reshape(1, 3, 1, 1)
    q = bs.quantize(x, fmt)
    assert q.shape == x.shape
    for i in range(2):
        for j in range(3):
            assert q[i, j] == bs.quantize(x[i, j], fmt)


def test_row_scales_make_rows_independent(fmt):
    if not fmt.has_tensor_scale:
        with pytest.raises(ValueError, match="has no tensor scale"):
            bs.quantize(torch.randn(2, 256), fmt, tensor_scale="row")
        return
    x = torch.randn(5, 256) * torch.logspace(-6, 6, 5)[:, None]
    q = bs.quantize(x, fmt, tensor_scale="row")
    assert q.tensor_scale.shape == (5,)
    for i in range(5):
        assert q[i : i + 1] == bs.quantize(x[i : i + 1], fmt, tensor_scale="row")


def test_zero_blocks_decode_to_zero(fmt):
    x = torch.zeros(3, 256)
    q = bs.quantize(x, fmt)
    # Without a zero among scales or codes, the smallest product is as close as it gets.
    has_zero = fmt.scale.zero or 0.0 in fmt.element.values
    assert q.dequantize().abs().max() <= (0 if has_zero else fmt.scale.smallest)
    if q.tensor_scale is not None:
        assert q.tensor_scale.item() == 1.0
    x[1, 7] = 2.5
    y = bs.quantize(x, fmt).dequantize()
    assert y[::2].abs().max() <= (0 if has_zero else fmt.scale.smallest)


def test_saturation_keeps_the_sign_and_the_largest_value(fmt):
    """Far above a given scale everything becomes the largest value of its sign."""
    if not fmt.has_tensor_scale or fmt.scale.power_of_two:
        pytest.skip("the scales reach any amax")
    x = torch.full((1, 256), 1e30)
    x[0, 1::2] *= -1
    q = bs.quantize(x, fmt, tensor_scale=1.0)
    element = fmt.element
    low, high = min(element.values), max(v for v in element.values if v == v)
    largest = fmt.scale.max
    y = q.dequantize()
    assert y[0, 0].item() == pytest.approx(high * largest)
    assert y[0, 1].item() == pytest.approx(low * largest)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_non_finite_input(fmt, bad):
    x = torch.randn(2, 256)
    clean = bs.quantize(x, fmt)
    dirty = x.clone()
    dirty[1, fmt.block + 3] = bad
    zeros = bs.quantize(torch.zeros_like(x), fmt)
    q = bs.quantize(dirty, fmt)
    y = q.dequantize()
    block = slice(fmt.block, 2 * fmt.block)
    if fmt.scale.nan_code is not None:
        assert y[1, block].isnan().all()
        assert torch.equal(codes_of(q)[1, block], codes_of(zeros)[1, block])
        if fmt.scale.bits == 8:
            assert q.scale[1, 1].item() == fmt.scale.nan_code
    elif math.isnan(bad):
        zeroed = torch.where(dirty.isnan(), 0.0, dirty)
        assert torch.equal(y, bs.quantize(zeroed, fmt).dequantize())
    else:
        extreme = max(fmt.element.values) if bad > 0 else min(fmt.element.values)
        assert y[1, fmt.block + 3].item() == pytest.approx(extreme * fmt.scale.max)
    if q.tensor_scale is None or torch.equal(q.tensor_scale, clean.tensor_scale):
        assert torch.equal(y[0], clean.dequantize()[0])  # other blocks are untouched
    with pytest.raises(ValueError, match=r"x has 1 NaN or Inf of 512 values, the first at \(1, "):
        bs.quantize(dirty, fmt, check=True)
    bs.quantize(x, fmt, check=True)


def test_infinities_do_not_reach_the_tensor_scale():
    x = torch.randn(4, 64)
    dirty = x.clone()
    dirty[0, 0] = math.inf
    dirty[1, 1] = math.nan
    assert bs.quantize(dirty, bs.NVFP4).tensor_scale == bs.quantize(x, bs.NVFP4).tensor_scale


def subnormal_data():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 23, (8, 256)).astype(np.int32)
    x = torch.from_numpy(bits | (rng.integers(0, 2, bits.shape) << 31).astype(np.int32))
    return x.view(torch.float32)


def test_subnormals(fmt):
    """Blocks of subnormals are quantised like any other where the scale reaches them."""
    x = subnormal_data()
    q = bs.quantize(x, fmt)
    y = q.dequantize().numpy().astype(np.float64)
    error = np.abs(y - x.numpy().astype(np.float64)).max()
    values = np.unique([value for value in fmt.element.values if np.isfinite(value)])
    half_step = np.diff(values).max() / 2
    if fmt.scale.bits == 32:
        step = float(q.scale.view(torch.float32).max())
    else:
        step = fmt.scale.values[int(q.scale.max())]
    unit = 1.0 if q.tensor_scale is None else float(q.tensor_scale.double())
    # a scale among its own subnormals is off by half a step, which clips or stretches the block
    off_scale = 0.0 if fmt.scale.bits == 32 else fmt.scale.smallest / 2 * fmt.element.max
    assert error <= (half_step * step + off_scale) * unit + 2.0**-149


def test_flush_to_zero_changes_nothing(fmt, flush_denormal):
    for x in (subnormal_data(), torch.randn(4, 256)):
        torch.set_flush_denormal(False)
        expected = bs.quantize(x, fmt)
        values = expected.dequantize()
        torch.set_flush_denormal(True)
        got = bs.quantize(x, fmt)
        assert got == expected
        assert torch.equal(got.dequantize().view(torch.int32), values.view(torch.int32))


def test_precision_settings_change_nothing(fmt):
    x = torch.randn(4, 256)
    expected = bs.quantize(x, fmt)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        for dtype in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            assert bs.quantize(x, fmt) == expected
        with torch.inference_mode():
            assert bs.quantize(x, fmt) == expected
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(before)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=128, max_size=128))
def test_any_bits_decode_to_nan_exactly_where_a_block_is_not_finite(bits):
    x = torch.tensor([b - (1 << 31) for b in bits], dtype=torch.int32).view(torch.float32)[None]
    for fmt_ in (bs.NVFP4, bs.MXFP8, bs.KBIT4, bs.MXFP4):
        q = bs.quantize(x, fmt_)
        y = q.dequantize()
        blocks = x.unflatten(-1, (-1, fmt_.block))
        finite = blocks.isfinite().all(-1)
        if fmt_.scale.nan_code is not None:
            assert torch.equal(y.unflatten(-1, (-1, fmt_.block)).isnan().any(-1), ~finite)
        else:
            assert not y.isnan().any()
            assert y[~x.isinf()].isfinite().all()


def test_non_contiguous_input(fmt):
    x = torch.randn(256, 8).T
    assert bs.quantize(x, fmt) == bs.quantize(x.contiguous(), fmt)


def test_empty_tensors(fmt):
    q = bs.quantize(torch.empty(0, 256), fmt)
    assert q.shape == (0, 256)
    assert q.dequantize().shape == (0, 256)
    assert bs.quantize(torch.empty(0, 4, 256), fmt).dequantize().shape == (0, 4, 256)


def test_large_tensors_are_done_in_panels_with_the_same_bits():
    x = torch.randn(4200, 1024)
    q = bs.quantize(x, bs.MXFP4)
    assert q[4000:4200] == bs.quantize(x[4000:], bs.MXFP4)
    assert torch.equal(q.dequantize()[4000:], q[4000:].dequantize())


def test_given_tensor_scales_are_used_as_they_are():
    x = torch.randn(3, 4, 64)
    assert bs.quantize(x, bs.NVFP4, tensor_scale=1.0).tensor_scale.tolist() == [1.0] * 3
    per_matrix = torch.tensor([0.5, 1.0, 2.0])
    q = bs.quantize(x, bs.NVFP4, tensor_scale=per_matrix)
    assert torch.equal(q.tensor_scale, per_matrix)
    assert q.tensor_scale.data_ptr() != per_matrix.data_ptr()
    per_row = torch.rand(3, 4) + 0.5
    assert torch.equal(bs.quantize(x, bs.NVFP4, tensor_scale=per_row).tensor_scale, per_row)
    learned = bs.quantize(x, bs.NVFP4, tensor_scale=per_row.requires_grad_())
    assert not learned.tensor_scale.requires_grad  # quantisation has no gradient


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.0, "must be positive and finite"),
        (-1.0, "must be positive and finite"),
        (math.nan, "must be positive and finite"),
        (torch.ones(5), r"one per matrix \[3\] or one per row \[3, 4\], got shape \[5\]"),
        ("rows", "a number, a tensor or 'row', got 'rows'"),
    ],
)
def test_bad_tensor_scales_are_refused(value, message):
    with pytest.raises(ValueError, match=message):
        bs.quantize(torch.randn(3, 4, 64), bs.NVFP4, tensor_scale=value)


def test_codebook_formats_decode_with_the_tensors_own_table():
    table = (-1.0, -0.5, -0.2, 0.0, 0.1, 0.3, 0.6, 0.9)
    q = bs.quantize(torch.randn(2, 64), bs.KBIT3.replace(codebook=table))
    assert torch.equal(q.codebook, torch.tensor(table))
    assert torch.equal(q.dequantize().abs().amax(-1) > 0, torch.tensor([True, True]))
    other = bs.QTensor.from_storage(bs.KBIT3, q.codes, q.scale, codebook=torch.zeros(8))
    assert not other.dequantize().any()
