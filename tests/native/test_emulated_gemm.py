"""The Hopper GEMM's own source, run by the emulator: several CTAs at once, in several schedules.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.ops.operand import as_groups
from blockscale.problem import Kind, Problem
from blockscale.runtime import gpu
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


def lossless(format, *shape):
    """Weights whose sums float32 holds: all scales are small powers of two."""
    q = bs.quantize(torch.randn(*shape), format)
    one = format.scale.values.index(1.0)
    q.scale.fill_(one)
    if q.tensor_scale is not None:
        q.tensor_scale.fill_(0.25)
    return q, q.pack(fragments(format))


def numbers(m, k):
    return torch.randint(-4, 5, (m, k)).bfloat16()


def problem_of(format, m, n, k, out="float32", **facts):
    w = str(Kind(format, fragments(format)))
    device = gpu("h200")
    return Problem(verb="matmul", m=m, n=n, k=k, x="bfloat16", out=out, device=device, w=w, **facts)


def run(problem, config, weights, x, biases=(None,), sizes=None):
    """Into memory that holds NaN: what is not written is seen."""
    out = torch.full((problem.rows, problem.n), torch.nan, dtype=problem.out_dtype)
    parts = tuple(as_groups(w.operand) for w in weights)
    sm90_gemm.bind(problem, config, parts, frozen=True)(x, biases, sizes, out)
    return out


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_tiles_of_one_cta(schedule):
    q, w = lossless(bs.NVFP4, 200, 256)
    x = numbers(70, 256)
    config = Config(tile_m=64, warpgroups=1, tiles_per_warp=1, stages=3, cluster=1)
    problem = problem_of(bs.NVFP4, 70, 200, 256)
    with scheduled(schedule):
        y = run(problem, config, (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)
