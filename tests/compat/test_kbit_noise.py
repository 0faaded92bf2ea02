"""Quantisation alone makes the noise of a fused k-bit product: it stays as far below the signal as
the public test suites of k-bit kernels ask."""

import pytest
import torch

from bench.codebook_tables import decibels
from blockscale import compat


def product_and_noise(m, k_dim, n, k, dtype, method="mid_quantiles"):
    """A fused product, and its noise beside the product that nothing was quantised for, in dB."""
    x, w = torch.randn(m, k_dim).to(dtype), torch.randn(n, k_dim).to(dtype)
    table = compat.create_normal_float_codebook(k, method=method)
    packed, absmax, _ = compat.quantize_kbit(w, k, table)
    tiled = compat.repack_for_gemm(packed, absmax, k_dim, n, k)
    y = compat.kbit_gemm(x, *tiled, table, k_dim, n, k)
    return y, decibels(x.double() @ w.double().T, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("k_dim", "n"), [(128, 128), (256, 128), (128, 256), (256, 256)])
@pytest.mark.parametrize("m", [1, 4, 16, 32])
def test_four_bits_leave_10_db(m, k_dim, n, dtype):
    y, ratio = product_and_noise(m, k_dim, n, 4, dtype)
    assert y.dtype == dtype
    assert ratio > 10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["mid_quantiles", "bin_means"])
@pytest.mark.parametrize("k", [4, 5])
@pytest.mark.parametrize("m", [1, 4, 8, 16])
def test_four_and_five_bits_leave_20_db(m, k, method, dtype):
    """With enough columns that the ratio of a sample is that of the distribution, 20.7 and more."""
    _, ratio = product_and_noise(m, 256, 2048, k, dtype, method)
    assert ratio > 20
