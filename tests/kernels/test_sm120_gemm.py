"""The block-scaled GEMM by mma.sync as far as it can be counted without its GPU."""

from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.kernels.matmul import sm120_gemm
from blockscale.kernels.matmul.block_scaled.operands import operands_of
from blockscale.kernels.matmul.sm120_gemm.config import Config
from blockscale.kernels.matmul.sm120_gemm.shared_memory import shared_bytes, shared_memory
from blockscale.problem import Problem
from blockscale.runtime import gpu


def problem(format=bs.MXFP8, *, m=4096, n=4096, k=4096, device="rtx5090", **facts):
    kind = f"{format.spec}@bits/blocked"
    return Problem(
        verb="matmul", m=m, n=n, k=k, x=kind, w=kind, out="bfloat16", device=gpu(device), **facts
    )


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("format", [bs.NVFP4, bs.MXFP4, bs.MXFP6_E3M2, bs.MXFP8])
def test_every_config_fits(format, gated):
    every = problem(format, gated=gated, activation="silu" if gated else "")
    found = sm120_gemm.configs(every)
    assert {config.w_rows for config in found} == ({128} if gated else {64, 128})
    for config in found:
        assert config.stages >= 2
        assert shared_bytes(config, every) + 1024 <= 101_376
        assert config.threads == 32 * (config.w_rows // 16 + 1)


@pytest.mark.parametrize(
    ("x", "w", "gated", "counted"),
    [
        (bs.MXFP8, bs.MXFP8, False, 2 * 16384 + 2 * 512),
        (bs.NVFP4, bs.NVFP4, False, 2 * 16384 + 8 * 512),
        (bs.NVFP4, bs.NVFP4, True, 2 * 16384 + 12 * 512),  # gate and up have atoms of their own
        (bs.MXFP8, bs.MXFP4, False, 16384 + 8192 + 2 * 512),
    ],
)
def test_bytes_that_tma_counts_for_a_stage(x, w, gated, counted):
    assert shared_memory(Config(128, 2), operands_of(x, w), gated).stage_tx == counted


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"device": gpu("b200")}, "mma.sync with block scales, which sm_100 has not"),
        ({"device": gpu("rtx4090")}, "mma.sync with block scales, which sm_89 has not"),
        ({"x": "float16"}, "multiplies quantised x, and x is float16: give x_format"),
        ({"k": 4096 + 16, "x": "", "w": ""}, "multiples of 64, not 4112"),
    ],
)
def test_what_it_cannot_multiply_is_refused_with_the_reason(changed, why):
    fine = problem(bs.NVFP4) if "w" in changed else problem()
    assert sm120_gemm.refuses(fine) is None
    changed = {name: value for name, value in changed.items() if value}
    assert why in sm120_gemm.refuses(replace(fine, **changed))


@pytest.mark.parametrize("device", ["rtx5090", "gb10"])
def test_a_prediction_says_that_it_is_one(device):
    large = problem(bs.NVFP4, device=device)
    told = str(sm120_gemm.bind(large, sm120_gemm.configs(large)[0]).predicted)
    assert told.endswith("of the tensor cores' peak, predicted, not measured")
