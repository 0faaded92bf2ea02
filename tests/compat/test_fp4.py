"""FP4 linear layers: weights quantised once, activations at each call."""

import sys

import pytest
import torch

import blockscale as bs
from blockscale import compat
from blockscale.runtime import gpu


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


@pytest.mark.parametrize(("device", "kernel"), [("b200", "sm100_gemm"), ("rtx5090", "sm120_gemm")])
def test_on_blackwell_codes_meet_codes(monkeypatch, device, kernel):
    """The weight is placed for the kernels that multiply NVFP4 by NVFP4 as they are."""
    for module in ("blockscale.tensor.qtensor", "blockscale.ops.matmul"):
        monkeypatch.setattr(sys.modules[module], "device_of", lambda _: gpu(device))
    weight = compat.fp4_quantize(torch.randn(512, 512)).weight
    assert str(weight.layout) == "bits/blocked"
    x = torch.randn(1024, 512).bfloat16()
    told = bs.explain(x, weight, x_format=bs.NVFP4)
    assert told.kernel == kernel


def test_fp4_errors():
    with pytest.raises(ValueError, match=r"weight must be \[N, K\]"):
        compat.fp4_quantize(torch.randn(64))
    with pytest.raises(ValueError, match=r"bias must be \[8\], got \[3\]"):
        compat.fp4_quantize(torch.randn(8, 64), torch.zeros(3))
    with pytest.raises(ValueError, match="x has K=32 but the weight has K=64"):
        compat.fp4_quantize(torch.randn(8, 64))(torch.randn(2, 32))


def test_correlation_and_error_of_fp4_times_fp4():
    """0.991 correlation, and an error of 13.5% of mean |y|: not the 1.2% sometimes quoted."""
    x, w = torch.randn(256, 2048), torch.randn(256, 2048)
    y, exact = compat.fp4_matmul(x, w), x @ w.T
    assert torch.corrcoef(torch.stack([y.flatten(), exact.flatten()]))[0, 1] > 0.990
    assert 0.12 < ((y - exact).abs().mean() / exact.abs().mean()) < 0.15
