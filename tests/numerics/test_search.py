"""Searched scales: never worse than absmax, and as good as measured."""

import math

import pytest
import torch

import blockscale as bs

SEARCHED = [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5]


def block_errors(x, q):
    error = (x.double() - q.dequantize().double()).square()
    return error.unflatten(-1, (-1, q.format.block)).sum(-1)


def samples():
    gaussian = torch.randn(256, 512)
    heavy = torch.distributions.StudentT(5.0).sample((64, 512))
    spiky = gaussian * (1 + 50 * (torch.rand(256, 512) < 0.002))
    tiny = torch.randn(16, 512) * 1e-12
    sparse = gaussian * (torch.rand(256, 512) < 0.05)
    return [gaussian, heavy, spiky, tiny, sparse]


# Block errors are sums of up to 32 float64 squares: equal to this many units in the last place.
ROUNDING = 1 + 64 * 2.0**-53


@pytest.mark.parametrize("fmt_", SEARCHED, ids=str)
def test_mse_never_loses_to_absmax_on_any_block(fmt_):
    for x in samples():
        absmax, searched = bs.quantize(x, fmt_), bs.quantize(x, fmt_, scale="mse")
        assert (block_errors(x, searched) <= block_errors(x, absmax) * ROUNDING).all()


def test_four_over_six_never_loses_to_absmax_and_mse_never_to_it():
    for x in samples():
        absmax, either, searched = (
            block_errors(x, bs.quantize(x, bs.NVFP4, scale=rule))
            for rule in ("absmax", "four_over_six", "mse")
        )
        assert (either <= absmax * ROUNDING).all()
        assert either.sum() < absmax.sum()
        assert (searched <= either * ROUNDING).all()  # amax / 4 is within a binade of amax / 6


def sqnr(x, q):
    return 10 * math.log10(x.double().square().sum() / block_errors(x, q).sum())


# measured on 2M samples: absmax, four_over_six and mse on a Gaussian
@pytest.mark.parametrize(
    ("fmt_", "rule", "least", "most"),
    [
        (bs.NVFP4, "absmax", 20.3, 20.6),
        (bs.NVFP4, "four_over_six", 21.1, 21.3),
        (bs.NVFP4, "mse", 21.7, 21.9),
        (bs.MXFP4, "mse", 19.0, 19.2),
        (bs.KBIT2, "mse", 9.7, 9.9),
        (bs.KBIT3, "mse", 15.8, 16.0),
        (bs.KBIT4, "mse", 21.9, 22.2),
        (bs.KBIT5, "mse", 28.1, 28.4),
    ],
)
def test_measured_quality(fmt_, rule, least, most):
    x = torch.randn(1024, 512)
    assert least < sqnr(x, bs.quantize(x, fmt_, scale=rule)) < most


def brute_force_mse(block, fmt_, g):
    """Least error over every scale code within a binade of the absmax one, tried one by one."""
    x = block.double()
    values = torch.tensor(fmt_.element.values, dtype=torch.float64)
    start = bs.quantize(block[None], fmt_, tensor_scale=g).scale.item()
    reach = 1 << fmt_.scale.mantissa
    errors = {}
    for code in range(max(start - reach, 1), min(start + reach, fmt_.scale.max_code) + 1):
        step = fmt_.scale.values[code] * g
        errors[code] = (x[:, None] - values * step).square().amin(-1).sum().item()
    return min(errors.values()), abs(min(errors, key=errors.get) - start)


@pytest.mark.parametrize("fmt_", [bs.NVFP4, bs.KBIT2, bs.KBIT4], ids=str)
def test_mse_finds_the_least_error_within_a_binade(fmt_):
    distances = []
    for seed in range(60):
        torch.manual_seed(seed)
        block, g = torch.randn(fmt_.block) * 2, 0.25  # a power of two: float32 rounds nothing
        q = bs.quantize(block[None], fmt_, scale="mse", tensor_scale=g)
        least, distance = brute_force_mse(block, fmt_, g)
        assert block_errors(block[None], q).item() == pytest.approx(least, rel=1e-6)
        distances.append(distance)
    if fmt_ is bs.KBIT2:
        assert max(distances) > 12  # two-bit codebooks need most of the binade


def test_a_tie_keeps_the_absmax_scale():
    """6 and zeros are exact at scale 1 (6 * 1), 1.5 (4 * 1.5), 2 (3 * 2) and others."""
    x = torch.zeros(1, 16)
    x[0, 3] = 6.0
    one = bs.NVFP4.scale.values.index(1.0)
    assert bs.quantize(x, bs.NVFP4, scale="mse", tensor_scale=1.0).scale.item() == one
    assert bs.quantize(x, bs.NVFP4, scale="four_over_six", tensor_scale=1.0).scale.item() == one


def test_four_over_six_is_one_of_its_two_candidates():
    x = torch.randn(64, 64)
    six = bs.quantize(x, bs.NVFP4)
    chosen = bs.quantize(x, bs.NVFP4, scale="four_over_six")
    moved = chosen.scale != six.scale
    assert 0.2 < moved.float().mean() < 0.8
    amax = x.unflatten(-1, (-1, 16)).abs().amax(-1)
    fourth = (amax / 4 / six.tensor_scale).clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(chosen.scale[moved], fourth[moved])


def test_zero_blocks_keep_their_scale():
    x = torch.zeros(2, 64)
    x[0, :16] = torch.randn(16)
    for fmt_ in (bs.NVFP4, bs.KBIT4, bs.MXFP4):
        q = bs.quantize(x, fmt_, scale="mse")
        assert q.scale[1].eq(0).all()


def test_non_finite_blocks_survive_a_search():
    x = torch.randn(2, 64)
    x[0, 3] = math.nan
    x[1, 5] = math.inf
    assert bs.quantize(x, bs.NVFP4, scale="mse").dequantize()[0, :16].isnan().all()
    assert bs.quantize(x, bs.KBIT4, scale="mse").dequantize().isfinite().all()
