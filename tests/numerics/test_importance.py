"""Squared errors with an importance for each column: what the search then finds."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.numerics import quantize_rows

SEARCHED = [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT4]

# Block errors are sums of up to 32 float64 products: equal to this many units in the last place.
ROUNDING = 1 + 96 * 2.0**-53


def block_errors(x, q, importance):
    error = (x.double() - q.dequantize().double()).square() * importance.double()
    return error.unflatten(-1, (-1, q.format.block)).sum(-1)


def spread(k):
    """A few columns matter a lot, as in language models."""
    return torch.randn(k).mul(2).exp()


@pytest.mark.parametrize("fmt_", SEARCHED, ids=str)
def test_weighted_errors_fall_and_none_rises(fmt_):
    x, importance = torch.randn(64, 256), spread(256)
    plain = bs.quantize(x, fmt_, scale="mse")
    weighed = bs.quantize(x, fmt_, scale="mse", importance=importance)
    before, after = (block_errors(x, q, importance) for q in (plain, weighed))
    assert (after <= before * ROUNDING).all()
    if not fmt_.scale.power_of_two:  # those have three candidates, and mostly one that is any good
        assert after.sum() < 0.85 * before.sum()


@pytest.mark.parametrize("fmt_", [bs.NVFP4, bs.KBIT2, bs.KBIT4], ids=str)
def test_the_least_weighted_error_within_a_binade_is_found(fmt_):
    values = torch.tensor(fmt_.element.values, dtype=torch.float64)
    reach, g = 1 << fmt_.scale.mantissa, 0.25  # a power of two: float32 rounds nothing
    for seed in range(30):
        torch.manual_seed(seed)
        block, importance = torch.randn(fmt_.block) * 2, spread(fmt_.block)
        start = bs.quantize(block[None], fmt_, tensor_scale=g).scale.item()
        least = min(
            (
                (block.double()[:, None] - values * fmt_.scale.values[code] * g)
                .square()
                .amin(-1)
                .mul(importance.double())
                .sum()
                .item()
            )
            for code in range(max(start - reach, 1), min(start + reach, fmt_.scale.max_code) + 1)
        )
        q = bs.quantize(block[None], fmt_, scale="mse", tensor_scale=g, importance=importance)
        assert block_errors(block[None], q, importance).item() == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("fmt_", SEARCHED, ids=str)
def test_equal_importance_is_plain(fmt_):
    """Powers of two scale every error exactly, so not even ties can fall otherwise."""
    x = torch.randn(8, 128)
    plain = bs.quantize(x, fmt_, scale="mse")
    for value in (1.0, 2.0**-149, 2.0**100):
        q = bs.quantize(x, fmt_, scale="mse", importance=torch.full((128,), value))
        assert q == plain


@pytest.mark.parametrize("unusable", [0.0, math.nan, math.inf])
def test_a_block_without_usable_importance_has_plain_errors(unusable):
    x, importance = torch.randn(8, 64), spread(64)
    spoilt = importance.clone()
    if unusable == 0:
        spoilt[32:] = 0
    else:
        spoilt[40] = unusable
    first, second = (slice(0, 1), slice(1, 2))  # scale bytes of the two blocks
    q, plain, whole = (
        bs.quantize(x, bs.KBIT3, scale="mse", importance=each).scale
        for each in (spoilt, None, importance)
    )
    assert torch.equal(q[:, second], plain[:, second])
    assert torch.equal(q[:, first], whole[:, first])
    assert not torch.equal(whole, plain)


def test_negative_importance_counts_as_unusable():
    x, importance = torch.randn(8, 32), spread(32)
    importance[5] = -1.0
    assert torch.equal(
        quantize_rows(x, bs.KBIT4, "mse", torch.ones(8), torch.tensor(bs.KBIT4.codebook)).scale,
        quantize_rows(
            x, bs.KBIT4, "mse", torch.ones(8), torch.tensor(bs.KBIT4.codebook), importance
        ).scale,
    )


def test_zero_importance_gives_a_column_away():
    """An outlier that nothing meets no longer widens its block."""
    x = torch.randn(4, 32)
    x[:, 7] = 30.0
    importance = torch.ones(32)
    importance[7] = 0.0
    kept = torch.arange(32) != 7
    before, after = (
        (x - bs.quantize(x, bs.KBIT4, scale="mse", importance=each).dequantize())[:, kept].norm()
        for each in (None, importance)
    )
    assert after < 0.7 * before


def test_each_matrix_may_have_an_importance_of_its_own():
    x, importance = torch.randn(3, 8, 64), torch.stack([spread(64) for _ in range(3)])
    together = bs.quantize(x, bs.NVFP4, scale="mse", importance=importance)
    shared = bs.quantize(x, bs.NVFP4, scale="mse", importance=importance[0])
    for i in range(3):
        alone = bs.quantize(x[i], bs.NVFP4, scale="mse", importance=importance[i])
        assert together[i] == alone
    assert shared[0] == together[0]
    assert shared[1] != together[1]


def test_the_same_bits_from_every_dtype_of_importance():
    x, importance = torch.randn(8, 64), spread(64).bfloat16()
    assert bs.quantize(x, bs.NVFP4, scale="mse", importance=importance) == bs.quantize(
        x, bs.NVFP4, scale="mse", importance=importance.double()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"importance": torch.ones(64)}, "scale is 'absmax'"),
        ({"importance": torch.ones(64), "scale": "four_over_six"}, "scale is 'four_over_six'"),
        ({"importance": torch.ones(63), "scale": "mse"}, r"must be \[64\] or \[2, 64\].*\[63\]"),
        ({"importance": torch.ones(3, 64), "scale": "mse"}, r"got \[3, 64\]"),
        ({"importance": torch.full((64,), -2.5), "scale": "mse"}, "not be negative, got -2.5"),
    ],
)
def test_what_cannot_be_an_importance_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bs.quantize(torch.randn(2, 8, 64), bs.NVFP4, **arguments)
