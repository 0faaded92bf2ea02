"""Conversions that lose nothing."""

import pytest
import torch

import blockscale as bs


def with_exponents(low, high, rows=8):
    """An MXFP4 tensor whose block exponents span [low, high]."""
    q = bs.quantize(torch.randn(rows, 256), bs.MXFP4)
    scale = torch.randint(low + 127, high + 128, q.scale.shape, dtype=torch.uint8)
    scale[0, 0], scale[0, 1] = low + 127, high + 127
    codes = q.codes.clone()
    codes[0, :32] = 0x21  # both of these blocks hold something
    return bs.QTensor.from_storage(bs.MXFP4, codes, scale)


@pytest.mark.parametrize(
    ("low", "high"), [(-8, 9), (-20, -3), (100, 117), (0, 0), (-127, -110), (110, 127)]
)
def test_mxfp4_becomes_nvfp4_without_loss(low, high):
    q = with_exponents(low, high)
    nv = q.to_format(bs.NVFP4)
    assert nv.format == bs.NVFP4
    assert torch.equal(nv.codes, q.codes)
    assert torch.equal(nv.dequantize().view(torch.int32), q.dequantize().view(torch.int32))


def test_a_wider_span_is_refused_or_rounded():
    q = with_exponents(-9, 9)
    with pytest.raises(ValueError, match="span 18 powers of two and NVFP4 holds 17 without loss"):
        q.to_format(bs.NVFP4)
    rounded = q.to_format(bs.NVFP4, requantize=True)
    assert rounded == bs.quantize(q.dequantize(), bs.NVFP4)


def test_blocks_of_zeros_do_not_count():
    q = with_exponents(-8, 9)
    codes, scale = q.codes.clone(), q.scale.clone()
    codes[1, :16], scale[1, 0] = 0x80, 0  # zeros (one of them negative) with a tiny scale
    q = bs.QTensor.from_storage(bs.MXFP4, codes, scale)
    assert torch.equal(q.to_format("nvfp4").dequantize(), q.dequantize())


def test_nan_of_the_input_stays_nan():
    x = torch.randn(4, 64)
    x[0, 3] = torch.nan
    q = bs.quantize(x, bs.MXFP4)
    for target in (bs.NVFP4, bs.MXFP8):
        y = q.to_format(target).dequantize()
        assert torch.equal(y.isnan(), q.dequantize().isnan())
        assert y[0, :32].isnan().all()


def test_nan_blocks_stay_nan():
    q = with_exponents(0, 3)
    scale = q.scale.clone()
    scale[2, 3] = 255
    q = bs.QTensor.from_storage(bs.MXFP4, q.codes, scale)
    nv = q.to_format(bs.NVFP4).dequantize()
    assert torch.equal(nv.isnan(), q.dequantize().isnan())
    assert nv[2, 96:128].isnan().all()


def test_each_expert_is_judged_alone():
    a, b = with_exponents(-60, -50), with_exponents(40, 57)
    both = bs.QTensor.from_storage(
        bs.MXFP4, torch.stack([a.codes, b.codes]), torch.stack([a.scale, b.scale])
    )
    nv = both.to_format(bs.NVFP4)
    assert nv.tensor_scale.shape == (2,)
    assert torch.equal(nv.dequantize(), both.dequantize())


@pytest.mark.parametrize("target", ["mxfp6_e2m3", "mxfp6_e3m2", "mxfp8", "mxfp8_e5m2"])
def test_mxfp4_fits_in_every_wider_mx_format(target):
    q = with_exponents(-100, 100)
    assert torch.equal(q.to_format(target).dequantize(), q.dequantize())


def test_everything_else_needs_requantize():
    q = bs.quantize(torch.randn(4, 64), bs.MXFP8)
    for target in (bs.MXFP4, bs.NVFP4, bs.KBIT4, bs.MXFP8_E5M2):
        with pytest.raises(ValueError, match=f"mxfp8 has no lossless form in {target}"):
            q.to_format(target)
        assert q.to_format(target, requantize=True).format == target
    assert q.to_format(bs.MXFP8) is q


def test_requantize_rounds_only_where_it_must():
    q = bs.quantize(torch.randn(8, 64), bs.MXFP4)
    exact = q.to_format(bs.NVFP4, requantize=True)
    assert torch.equal(exact.dequantize(), q.dequantize())


def test_requantize_keeps_row_scales():
    q = bs.quantize(torch.randn(5, 64), bs.NVFP4, tensor_scale="row")
    assert q.to_format(bs.KBIT4, requantize=True).tensor_scale.shape == (5,)


def test_nothing_is_converted_to_nothing():
    q = bs.quantize(torch.randn(0, 64), bs.MXFP4)
    assert q.to_format(bs.NVFP4).shape == (0, 64)
    assert bs.quantize(torch.randn(0, 4, 64), bs.MXFP4).to_format("nvfp4").tensor_scale.shape == (
        0,
    )


def test_requantize_takes_a_scale_rule():
    q = bs.quantize(torch.randn(16, 64), bs.MXFP8)
    with pytest.raises(ValueError, match="scale='best' does not apply"):
        q.to_format(bs.NVFP4, requantize=True, scale="best")
    best = q.to_format(bs.NVFP4, requantize=True, scale="mse")
    assert best == bs.quantize(q.dequantize(), bs.NVFP4, scale="mse")
