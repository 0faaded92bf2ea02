"""k-bit tensors in plain tuples mean what the library's own do."""

import math

import pytest
import torch

import blockscale as bs
from blockscale import compat


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_kbit_roundtrip_and_gemm(k):
    w, x = torch.randn(40, 96), torch.randn(5, 96)
    packed, absmax, codebook = compat.quantize_kbit(w, k)
    assert packed.dtype == torch.int32
    assert packed.shape == (40 * 3 * k,)
    assert absmax.dtype == torch.uint8
    assert torch.equal(codebook, compat.create_normal_float_codebook(k))
    q = bs.quantize(w, bs.format(f"kbit{k}"))
    flat = compat.dequantize_kbit(packed, absmax, codebook, k, w.numel(), torch.float32)
    assert torch.equal(flat.reshape(40, 96), q.dequantize())
    tiled = compat.repack_for_gemm(packed, absmax, 96, 40, k)
    assert torch.equal(compat.kbit_gemm(x, *tiled, codebook, 96, 40, k), bs.matmul(x, q))


def test_kbit_blocks_run_over_the_flattened_tensor():
    x = torch.randn(3, 50)
    packed, absmax, codebook = compat.quantize_kbit(x, 4)
    assert absmax.numel() == 5  # 150 values: the last block is padded
    y = compat.dequantize_kbit(packed, absmax, codebook, 4, 150)
    assert y.dtype == torch.float16
    assert (y.reshape(3, 50).float() - x).abs().max() < 0.5


def test_kbit_with_an_asymmetric_codebook():
    table = torch.linspace(-0.5, 1.0, 8)
    w, x = torch.randn(8, 64), torch.randn(2, 64)
    packed, absmax, codebook = compat.quantize_kbit(w, 3, table)
    tiled = compat.repack_for_gemm(packed, absmax, 64, 8, 3)
    y = compat.kbit_gemm(x, *tiled, codebook, 64, 8, 3)
    q = bs.quantize(w, bs.KBIT3.replace(codebook=table.tolist()))
    assert torch.equal(y, bs.matmul(x, q))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compat.quantize_kbit(torch.randn(4, 64) * 40, 4), "outside E4M4's"),
        (lambda: compat.quantize_kbit(torch.randn(4, 64) * 1e-6, 4), "outside E4M4's"),
        (lambda: compat.quantize_kbit(torch.tensor([math.nan, 1000.0]), 4), "amax 1000 is outside"),
        (
            lambda: compat.quantize_kbit(torch.tensor([math.nan, math.inf]), 4),
            "amax inf is outside",
        ),
        (lambda: compat.quantize_kbit(torch.randn(4, 64), 6), "k must be 2, 3, 4 or 5"),
        (lambda: compat.repack_for_gemm(torch.zeros(4), torch.zeros(1), 64, 1, 4), "must be int32"),
        (
            lambda: compat.repack_for_gemm(torch.zeros(4), torch.zeros(1), 60, 1, 4),
            "divisible by 32",
        ),
    ],
)
def test_kbit_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_kbit_gemm_checks_the_shape():
    packed, absmax, table = compat.quantize_kbit(torch.randn(8, 64), 4)
    tiled = compat.repack_for_gemm(packed, absmax, 64, 8, 4)
    with pytest.raises(ValueError, match="N=4, K_dim=128, k=4 need"):
        compat.kbit_gemm(torch.randn(1, 128), *tiled, table, 128, 4, 4)
