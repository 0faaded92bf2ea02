"""The mixed-input tcgen05 GEMM's own source, run by the emulator: several CTAs at once, in several
schedules.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import sm100_mixed_gemm
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.runtime import gpu
from native.emulated_products import lossless, numbers, problem_of, run
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import check_gated, exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


def on_b200(format, m, n, k, sms, **facts):
    return problem_of(format, m, n, k, device=replace(gpu("b200"), sms=sms), **facts)


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_one_cta_multiplies_several_tiles(schedule):
    """Accumulators, sets of weights and slots of the ring are all used again; k has a tail."""
    m, n, k = 300, 150, 336
    q, w = lossless(bs.NVFP4, n, k)
    x, bias = numbers(m, k), torch.randint(-9, 9, (1, n)).float()
    problem = on_b200(bs.NVFP4, m, n, k, sms=1, bias=True)
    with scheduled(schedule):
        y = run(sm100_mixed_gemm, problem, Config(256, 1, 4), (w,), x, (bias,))
    assert torch.equal(y.double(), x.double() @ exact(q).mT + bias.double())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_pair_of_ctas_multiplies_several_tiles(schedule):
    """The second tile of w ends inside the rows of the odd CTA."""
    m, n, k = 150, 420, 288
    q, w = lossless(bs.MXFP4, n, k)
    x = numbers(m, k)
    problem = on_b200(bs.MXFP4, m, n, k, sms=2)
    with scheduled(schedule):
        y = run(sm100_mixed_gemm, problem, Config(96, 2, 3), (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)


@pytest.mark.parametrize(("ctas", "schedule"), [(1, SCHEDULES[1]), (2, SCHEDULES[2])], ids=str)
def test_ragged_gated_experts(ctas, schedule):
    """Groups of rows, one of them empty, and rows of no group; bfloat16 by stmatrix."""
    sizes, n, k = torch.tensor([40, 0, 75]), 70, 288
    (gate, g), (up, u) = lossless(bs.MXFP4, 3, n, k), lossless(bs.MXFP4, 3, n, k)
    x = numbers(120, k) / 64
    problem = on_b200(
        bs.MXFP4, 120, n, k, 3, out="bfloat16", groups=3, verb="grouped_gated_matmul",
        activation="silu", ragged=True, gated=True,
    )  # fmt: skip
    with scheduled(schedule):
        y = run(sm100_mixed_gemm, problem, Config(64, ctas, 2), (g, u), x, (None, None), sizes)
    assert (y[115:] == 0).all()
    begin = 0
    for i, size in enumerate(sizes.tolist()):
        rows = slice(begin, begin + size)
        check_gated(y[rows], x[rows], gate[i], up[i], "silu")
        begin += size


@pytest.mark.parametrize("format", [bs.KBIT4, bs.MXFP8], ids=str)
def test_batches_of_other_elements(format):
    """One-hot rows of x, which give the weights back; tables and scales of several stages."""
    n, k = 40, 160
    q, w = lossless(format, 2, n, k)
    x = torch.eye(k).bfloat16().repeat(2, 1)
    problem = on_b200(format, k, n, k, 2, groups=2)
    y = run(sm100_mixed_gemm, problem, Config(64, 1, 3), (w,), x)
    assert torch.equal(y.view(2, k, n), q.dequantize(torch.bfloat16).float().mT)


def test_float16():
    m, n, k = 70, 40, 144
    q, w = lossless(bs.NVFP4, n, k)
    x = numbers(m, k).half()
    problem = on_b200(bs.NVFP4, m, n, k, 1, x="float16", out="float16")
    y = run(sm100_mixed_gemm, problem, Config(64, 1, 2), (w,), x)
    assert torch.equal(y, (x.double() @ exact(q).mT).half())
