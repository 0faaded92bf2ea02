"""Two tables for Gaussian data, by name, and what they cost."""

import pytest
import torch

import blockscale as bs
from bench.codebook_tables import DATA, sqnr
from blockscale import compat
from blockscale.compat import create_normal_float_codebook
from blockscale.formats import normal_float

METHODS = ("mid_quantiles", "bin_means")


def test_mid_quantiles_are_the_default():
    assert torch.equal(
        create_normal_float_codebook(4), create_normal_float_codebook(4, method="mid_quantiles")
    )
    assert tuple(create_normal_float_codebook(4).tolist()) == bs.KBIT4.codebook
    assert normal_float(4).values[-2] == pytest.approx(0.7076, abs=5e-5)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("method", METHODS)
def test_levels_are_the_medians_or_the_means_of_equally_likely_bins(k, method):
    """Against the bins of evenly spread quantiles, a million to the whole."""
    count = 2**20
    ranks = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    bins = torch.special.ndtri(ranks).reshape(2**k, -1)
    levels = bins.mean(1) if method == "bin_means" else bins.median(1).values
    levels = levels / levels.abs().max()
    given = create_normal_float_codebook(k, method=method)
    # The tail of the last bin is summed in steps, the median is one step off at most.
    torch.testing.assert_close(given.double(), levels, atol=1e-3, rtol=0)
    assert given.dtype == torch.float32
    assert torch.equal(given, -given.flip(0))
    assert given[-1] == 1


def test_the_second_level_of_bin_means():
    table = create_normal_float_codebook(4, method="bin_means")
    assert table[-2].item() == pytest.approx(0.674, abs=5e-4)


def test_the_same_arguments_give_the_same_tensor_until_it_is_written_to():
    first = create_normal_float_codebook(3)
    assert create_normal_float_codebook(3, torch.device("cpu")) is first
    assert create_normal_float_codebook(3, method="bin_means") is not first
    first.zero_()
    assert create_normal_float_codebook(3)[-1] == 1


def test_unknown_methods_and_widths_are_refused():
    with pytest.raises(ValueError, match="one of mid_quantiles, bin_means, got 'mean'"):
        create_normal_float_codebook(4, method="mean")
    with pytest.raises(ValueError, match="k must be 2, 3, 4 or 5, got 6"):
        create_normal_float_codebook(6)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_either_table_goes_all_the_way(k):
    w, x = torch.randn(40, 96), torch.randn(5, 96)
    table = create_normal_float_codebook(k, method="bin_means")
    packed, absmax, given = compat.quantize_kbit(w, k, table)
    assert given is table
    tiled = compat.repack_for_gemm(packed, absmax, 96, 40, k)
    own = bs.format(f"kbit{k}").replace(element=normal_float(k, "bin_means"))
    expected = bs.matmul(x, bs.quantize(w, own).prepare())
    assert torch.equal(compat.kbit_gemm(x, *tiled, table, 96, 40, k), expected)


@pytest.mark.parametrize("method", METHODS)
def test_models_take_a_table_by_name(method):
    model = torch.nn.Sequential(torch.nn.Linear(64, 8))
    report = bs.quantize_(model, bs.KBIT3, codebook=method)
    assert model[0].weight.codebook.tolist() == list(normal_float(3, method).values)
    assert report.quantized[0].format == bs.KBIT3.replace(element=normal_float(3, method))


def test_models_refuse_an_unknown_table():
    model = torch.nn.Sequential(torch.nn.Linear(64, 8))
    with pytest.raises(ValueError, match="one of fit, mid_quantiles, bin_means, got 'means'"):
        bs.quantize_(model, bs.KBIT3, codebook="means")
    with pytest.raises(ValueError, match="codebook='bin_means' needs a format with a codebook"):
        bs.quantize_(model, bs.NVFP4, codebook="bin_means")


def gains(scale):
    """What bin_means has over mid_quantiles, in dB."""
    return {
        (data, k): sqnr(data, k, "bin_means", scale) - sqnr(data, k, "mid_quantiles", scale)
        for data in DATA
        for k in (2, 3, 4, 5)
    }


def test_which_table_suits_which_data():
    """What the documentation says of its table."""
    better = {case for case, decibels in gains("absmax").items() if decibels > 0}
    assert better == {("Gaussian", 2), ("Student-t(5)", 2), ("Student-t(5)", 3)}
    assert all(abs(decibels) < 0.2 for decibels in gains("mse").values())
