"""The tcgen05 GEMM's own source, run by the emulator: single CTAs and pairs, in several schedules.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels import Parts
from blockscale.kernels.matmul import sm100_gemm
from blockscale.kernels.matmul.block_scaled import product
from blockscale.kernels.matmul.sm100_gemm.config import Config
from blockscale.ops.operand import as_groups
from blockscale.problem import Problem
from blockscale.runtime import gpu
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import check_gated, exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


def lossless(format, *shape):
    """Canonical, and with blocked scales: codes of small numbers, and scales of 1 and 2."""
    small = [0.0, 0.5, 1.0, -1.0, 1.5, -2.0]
    q = bs.quantize(torch.tensor(small)[torch.randint(len(small), shape)], format)
    table = {value: code for code, value in reversed(list(enumerate(format.element.values)))}
    codes = torch.tensor([table[value] for value in small], dtype=torch.uint8)
    picked = codes[torch.randint(len(small), shape)]
    packed = q.layout.pack_codes(picked, format)
    q.codes.copy_(packed.view_as(q.codes))
    q.scale.fill_(format.scale.values.index(1.0))
    q.scale[..., ::3] = format.scale.values.index(2.0)
    if q.tensor_scale is not None:
        q.tensor_scale.fill_(0.25)
    return q, q.pack("bits/blocked")


def run(problem, config, weights, x, biases=(None,), sizes=None):
    """Into memory that holds NaN: what is not written is seen."""
    out = torch.full((problem.rows, problem.n), torch.nan, dtype=problem.out_dtype)
    parts = tuple(as_groups(w.operand) for w in weights)
    scale = None if x.tensor_scale is None else x.tensor_scale.expand(problem.rows).contiguous()
    rows = Parts(x.codes, x.scale, scale, None)
    sm100_gemm.bind(problem, config, parts)(rows, biases, sizes, out)
    return out


def problem_of(x, w, m, n, k, out="float32", sms=2, **facts):
    return Problem(
        verb="matmul", m=m, n=n, k=k, x=f"{x.spec}@bits/blocked", w=f"{w.spec}@bits/blocked",
        out=out, device=replace(gpu("b200"), sms=sms), **facts,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
def test_single_ctas(schedule):
    """Several tiles for each of two CTAs; codes of 6 and 4 bits, which TMA spreads over bytes."""
    m, n, k = 140, 300, 384
    (x, given), (w, weight) = lossless(bs.MXFP6_E2M3, m, k), lossless(bs.MXFP4, n, k)
    config = Config(mma_n=128, ctas=1, panels=1, stages=2)
    with scheduled(schedule):
        y = run(problem_of(bs.MXFP6_E2M3, bs.MXFP4, m, n, k), config, (weight,), given)
    assert torch.equal(y.double(), exact(x) @ exact(w).mT)


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
def test_pairs_of_ctas(schedule):
    """Accumulators that share columns, scales of w by multicast, k that ends inside a stage."""
    m, n, k = 300, 260, 576
    (x, given), (w, weight) = lossless(bs.NVFP4, m, k), lossless(bs.NVFP4, n, k)
    bias = torch.randint(-9, 9, (1, n)).float()
    config = Config(mma_n=256, ctas=2, panels=1, stages=2, multicast=True)
    problem = problem_of(bs.NVFP4, bs.NVFP4, m, n, k, bias=True)
    with scheduled(schedule):
        y = run(problem, config, (weight,), given, (bias,))
    assert torch.equal(y.double(), exact(x) @ exact(w).mT + bias.double())


def test_ragged_gated_experts():
    """Groups of rows, one of them empty, and rows of no group; bfloat16."""
    sizes, n, k = torch.tensor([150, 0, 75]), 100, 128
    (gate, g), (up, u) = lossless(bs.NVFP4, 3, n, k), lossless(bs.NVFP4, 3, n, k)
    x, given = lossless(bs.NVFP4, 230, k)
    config = Config(mma_n=256, ctas=1, panels=1, stages=2)
    problem = problem_of(
        bs.NVFP4, bs.NVFP4, 230, n, k, out="bfloat16", groups=3, ragged=True, gated=True,
        activation="silu",
    )  # fmt: skip
    y = run(problem, config, (g, u), given, (None, None), sizes)
    assert (y[225:] == 0).all()
    begin = 0
    for i, size in enumerate(sizes.tolist()):
        rows = slice(begin, begin + size)
        check_gated(y[rows], exact(x)[rows].float(), gate[i], up[i], "silu")
        begin += size
