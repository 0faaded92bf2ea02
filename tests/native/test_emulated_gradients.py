"""Gradients of x by the Hopper GEMM's own source, with weights transposed, run by the emulator.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.input_grad import sm90_gemm
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.ops.operand import as_groups
from blockscale.runtime import gpu
from native.emulated_products import lossless, numbers, problem_of, scales_far_apart
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
SMALL = Config(64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1, transposed=True)


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


def gradient(format, w, grad, config, sms, sizes=None, out="float32", **facts):
    """Into memory that holds NaN: what is not written is seen."""
    *_, n, k = w.shape
    device = replace(gpu("h200"), sms=sms)
    problem = problem_of(
        format, len(grad), n, k, out=out, device=device, verb="input_grad", **facts
    )
    assert sm90_gemm.refuses(problem) is None
    dx = torch.full((len(grad), k), torch.nan, dtype=problem.out_dtype)
    sm90_gemm.bind(problem, config, (as_groups(w.operand),))(grad, (None,), sizes, dx)
    return dx


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
def test_clusters_split_tiles(schedule):
    """Rows of w that are no whole stage, in parts; x by multicast."""
    q, w = lossless(bs.NVFP4, 328, 448)
    grad = numbers(90, 328)
    with scheduled(schedule):
        dx = gradient(bs.NVFP4, w, grad, replace(SMALL, cluster=2, split=True), sms=6)
    assert torch.equal(dx.double(), grad.double() @ exact(q))


@pytest.mark.parametrize("block", [16, 32])
def test_scales_too_large_to_lift_weights_by(block):
    """Single weights, so nothing is rounded; a NaN is in the sums of its block's columns."""
    format = bs.MXFP4.replace(name="fp4_e8m0", block=block)
    q, w = scales_far_apart(328, 448, format)
    at = torch.randperm(328)[:60]
    grad = torch.nn.functional.one_hot(at, 328).bfloat16()
    dx, spoilt = gradient(format, w, grad, SMALL, sms=6), torch.arange(448) // block == 3
    assert dx[:, spoilt].isnan().all()
    assert torch.equal(dx[:, ~spoilt].double(), exact(q)[at][:, ~spoilt])


@pytest.mark.parametrize(
    "format", [bs.MXFP4, bs.MXFP8, bs.MXFP6_E2M3, bs.KBIT3, bs.KBIT4, bs.KBIT5], ids=str
)
def test_columns_inside_a_scale_group(format):
    """Scales of blocks of 32 stand together for 256 columns, and a CTA takes 128: the second half,
    too. Steps whose bits share words are taken apart by the warp."""
    q, w = lossless(format, 72, 320)
    if format.is_codebook:
        w.codebook.copy_(torch.arange(len(q.codebook)) - len(q.codebook) // 2)
        q.codebook.copy_(w.codebook)
    grad = numbers(40, 72)
    dx = gradient(format, w, grad, SMALL, sms=2)
    assert torch.equal(dx.double(), grad.double() @ exact(q))


def test_two_tiles_of_columns():
    q, w = lossless(bs.NVFP4, 200, 304)
    grad = numbers(130, 200)
    config = replace(SMALL, tiles_per_warp=2)
    assert torch.equal(
        gradient(bs.NVFP4, w, grad, config, sms=3).double(), grad.double() @ exact(q)
    )


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_ragged_experts(out):
    """An expert without rows, rows of nobody, and NaN in the expert behind another's last row."""
    q, w = lossless(bs.MXFP8, 3, 40, 288)
    q.codes[2, 0, 0] = w.codes.view(-1)[0] = 0x7F
    w = q.pack(w.layout)
    sizes, grad = torch.tensor([40, 0, 30]), numbers(75, 40) / 64
    dx = gradient(bs.MXFP8, w, grad, SMALL, sms=3, sizes=sizes, out=out, groups=3, ragged=True)
    expected = grad[:40].double() @ exact(q)[0]
    assert torch.equal(dx[:40].double(), expected.to(dx.dtype).double())
    assert dx[40:70, 0].isnan().all()
    expected = grad[40:70].double() @ exact(q)[2]
    assert torch.equal(dx[40:70, 1:].double(), expected[:, 1:].to(dx.dtype).double())
    assert (dx[70:] == 0).all()
