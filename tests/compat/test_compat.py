"""Names from elsewhere do what their documents say."""

import pytest
import torch

import blockscale as bs
from blockscale import compat


def dense(q):
    return q.dequantize()


def test_cached_linear_quantizes_activations_on_each_call():
    w, bias, x = torch.randn(12, 64), torch.randn(12), torch.randn(3, 5, 64)
    cache = compat.fp4_quantize(w, bias)
    expected = bs.linear(x, bs.quantize(w, bs.NVFP4), bias, x_format=bs.NVFP4)
    assert torch.equal(compat.fp4_cached_linear(x, cache), expected)
    assert torch.equal(cache(x), expected)
    assert torch.equal(compat.fp4_linear(x, w, bias), expected)


def test_dynamic_mode_quantizes_both():
    a, b = torch.randn(6, 64).bfloat16(), torch.randn(9, 64).bfloat16()
    y = compat.fp4_matmul(a, b)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, bs.matmul(a, bs.quantize(b, bs.NVFP4), x_format=bs.NVFP4))


@pytest.mark.parametrize("k", [1, 15, 17, 100])
def test_any_k_is_padded(k):
    w, x = torch.randn(7, k), torch.randn(4, k)
    y = compat.fp4_linear(x, w)
    assert y.shape == (4, 7)
    pad = -k % 16
    wide = [torch.nn.functional.pad(t, (0, pad)) for t in (x, w)]
    assert torch.equal(y, compat.fp4_linear(*wide))


def test_the_context_manager_frees_the_weight():
    w, x = torch.randn(8, 64), torch.randn(2, 64)
    with compat.FP4WeightCache(w, bias=torch.zeros(8)) as cache:
        y = cache.forward(x)
        assert y.shape == (2, 8)
        assert cache.weight.format == bs.NVFP4
    with pytest.raises(RuntimeError, match="was freed"):
        cache.forward(x)


def test_fp4_errors():
    with pytest.raises(ValueError, match=r"weight must be \[N, K\]"):
        compat.fp4_quantize(torch.randn(64))
    with pytest.raises(ValueError, match="x has K=32 but the weight has K=64"):
        compat.fp4_quantize(torch.randn(8, 64))(torch.randn(2, 32))


def test_correlation_and_error_of_fp4_times_fp4():
    """0.991 correlation, and an error of 13.5% of mean |y|: not the 1.2% sometimes quoted."""
    x, w = torch.randn(256, 2048), torch.randn(256, 2048)
    y, exact = compat.fp4_matmul(x, w), x @ w.T
    assert torch.corrcoef(torch.stack([y.flatten(), exact.flatten()]))[0, 1] > 0.990
    assert 0.12 < ((y - exact).abs().mean() / exact.abs().mean()) < 0.15


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


def test_kbit_grouped_gemm():
    weights = torch.randn(3, 8, 64)
    rows = [torch.randn(m, 64) for m in (2, 0, 5)]
    pieces = [compat.quantize_kbit(w, 4) for w in weights]
    tiled = [compat.repack_for_gemm(p, a, 64, 8, 4) for p, a, _ in pieces]
    ys = compat.kbit_grouped_gemm(
        rows, [t[0] for t in tiled], [t[1] for t in tiled], pieces[0][2], 64, 8, 4
    )
    for y, x, w in zip(ys, rows, weights, strict=True):
        torch.testing.assert_close(y, bs.matmul(x, bs.quantize(w, bs.KBIT4)))
    with pytest.raises(ValueError, match="one entry per expert"):
        compat.kbit_grouped_gemm(rows[:2], [t[0] for t in tiled], [], pieces[0][2], 64, 8, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compat.quantize_kbit(torch.randn(4, 64) * 40, 4), "outside E4M4's"),
        (lambda: compat.quantize_kbit(torch.randn(4, 64) * 1e-6, 4), "outside E4M4's"),
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


def test_linear_nbit_is_a_module():
    layer = torch.nn.Linear(64, 16)
    quantized = compat.LinearNbit.from_linear(layer, k=4)
    x = torch.randn(3, 64)
    expected = bs.linear(x, bs.quantize(layer.weight, bs.KBIT4, scale="mse"), layer.bias)
    torch.testing.assert_close(quantized(x), expected)
    assert "kbit4" in repr(quantized)
    assert (quantized(x) - layer(x)).abs().max() < 0.5
    state = quantized.state_dict()
    assert set(state) == {"bias", "codes", "scale", "tensor_scale", "codebook"}
    other = compat.LinearNbit.from_linear(torch.nn.Linear(64, 16), k=4)
    other.load_state_dict(state)
    assert torch.equal(other(x), quantized(x))


def test_linear_nbit_survives_a_cast():
    quantized = compat.LinearNbit(torch.randn(16, 64), k=3)
    before = quantized.weight
    assert quantized.to(torch.bfloat16).weight == before
    assert quantized(torch.randn(2, 64).bfloat16()).dtype == torch.bfloat16
