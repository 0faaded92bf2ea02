"""The tcgen05 GEMM's own source, run by the emulator: several CTAs at once, in several schedules.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil
from functools import partial

import pytest
import torch

import blockscale as bs
from blockscale.kernels import Parts
from blockscale.kernels.matmul import sm100_gemm
from blockscale.kernels.matmul.block_scaled import product
from blockscale.kernels.matmul.sm100_gemm.config import Config
from native.emulated_block_scaled import blocked, problem_of, rows_of, small
from native.emulated_products import run
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import check, check_gated, exact

problem_of = partial(problem_of, "b200")
pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


@pytest.mark.parametrize(
    ("format", "k", "schedule"),
    [*((bs.MXFP8, 416, each) for each in SCHEDULES), (bs.NVFP4, 576, SCHEDULES[1])],
    ids=str,
)
def test_one_cta_multiplies_several_tiles(format, k, schedule):
    """Accumulators, sets of scales and slots of the ring are all used again; k has a tail."""
    m, n = 150, 300
    x, w = small(format, m, k), small(format, n, k)
    bias = torch.randint(-9, 9, (1, n)).float()
    config = Config(mma_n=256, ctas=1, panels=1, stages=3)
    problem = problem_of(format, format, m, n, k, sms=1, bias=True)
    with scheduled(schedule):
        y = run(sm100_gemm, problem, config, (blocked(w),), rows_of(x, m), (bias,))
    assert torch.equal(y.double(), exact(x) @ exact(w).mT + bias.double())


@pytest.mark.parametrize(
    ("multicast", "schedule"),
    [(False, SCHEDULES[1]), (True, SCHEDULES[0]), (True, SCHEDULES[2]), (True, SCHEDULES[3])],
    ids=str,
)
def test_a_pair_of_ctas_multiplies_several_tiles(multicast, schedule):
    m, n, k = 300, 300, 416
    x, w = small(bs.MXFP8, m, k), small(bs.MXFP8, n, k)
    config = Config(mma_n=256, ctas=2, panels=1, stages=4, multicast=multicast)
    problem = problem_of(bs.MXFP8, bs.MXFP8, m, n, k, sms=2)
    with scheduled(schedule):
        y = run(sm100_gemm, problem, config, (blocked(w),), rows_of(x, m))
    assert torch.equal(y.double(), exact(x) @ exact(w).mT)


@pytest.mark.parametrize(
    ("multicast", "schedule"), [(False, SCHEDULES[2]), (True, SCHEDULES[1])], ids=str
)
def test_384_rows_of_w_are_two_instructions(multicast, schedule):
    """Two tiles of w, of which the second ends inside its second instruction's rows; one
    accumulator, and two sets of scales for three stages."""
    m, n, k = 200, 700, 576
    x, w = small(bs.NVFP4, m, k), small(bs.NVFP4, n, k)
    bias = torch.randint(-9, 9, (1, n)).float()
    config = Config(mma_n=384, ctas=2, panels=1, stages=3, multicast=multicast)
    problem = problem_of(bs.NVFP4, bs.NVFP4, m, n, k, sms=2, bias=True)
    with scheduled(schedule):
        y = run(sm100_gemm, problem, config, (blocked(w),), rows_of(x, m), (bias,))
    assert torch.equal(y.double(), exact(x) @ exact(w).mT + bias.double())


@pytest.mark.parametrize(
    ("x_format", "w_format"),
    [(bs.MXFP8, bs.MXFP4), (bs.MXFP6_E2M3, bs.MXFP6_E3M2), (bs.MXFP4, bs.MXFP4)],
    ids=["mxfp8-mxfp4", "mxfp6", "mxfp4"],
)
def test_elements_of_other_sizes(x_format, w_format):
    """Two panels to a stage; of batches, each has atoms of scales of its own."""
    m, n, k = 30, 70, 640
    x, w = small(x_format, 2, m, k), small(w_format, 2, n, k)
    config = Config(mma_n=128, ctas=1, panels=2, stages=2)
    problem = problem_of(x_format, w_format, m, n, k, sms=2, groups=2)
    y = run(sm100_gemm, problem, config, (blocked(w),), rows_of(x, 2 * m))
    assert torch.equal(y.double().view(2, m, n), exact(x) @ exact(w).mT)


@pytest.mark.parametrize(("ctas", "schedule"), [(1, SCHEDULES[1]), (2, SCHEDULES[2])], ids=str)
def test_ragged_gated_experts(ctas, schedule):
    """Groups of rows that begin and end inside tiles, one of them empty, and rows of no group."""
    sizes, n, k = torch.tensor([40, 0, 175]), 140, 320
    gate, up = small(bs.NVFP4, 3, n, k), small(bs.NVFP4, 3, n, k)
    x = small(bs.NVFP4, 220, k)
    config = Config(mma_n=256, ctas=ctas, panels=1, stages=2)
    facts = {"groups": 3, "ragged": True, "gated": True, "activation": "silu"}
    verb = "grouped_gated_matmul"
    problem = problem_of(bs.NVFP4, bs.NVFP4, 220, n, k, 2, "bfloat16", verb, **facts)
    parts = rows_of(x, 220)._replace(tensor_scale=torch.full((220,), 2.0**-9))
    with scheduled(schedule):
        weights = blocked(gate), blocked(up)
        y = run(sm100_gemm, problem, config, weights, parts, (None, None), sizes)
    assert (y[215:] == 0).all()
    values, begin = (exact(x) * 2.0**-7).float(), 0  # which float32 holds
    for i, size in enumerate(sizes.tolist()):
        rows = slice(begin, begin + size)
        check_gated(y[rows], values[rows], gate[i], up[i], "silu")
        begin += size


def test_scales_of_x_in_rows_are_blocked_for_each_batch():
    """Six tiles of one CTA, whose accumulators share no columns."""
    m, n, k = 30, 300, 416
    x, w = small(bs.MXFP8, 2, m, k), small(bs.MXFP8, 2, n, k)
    config = Config(mma_n=128, ctas=1, panels=1, stages=3)
    problem = problem_of(bs.MXFP8, bs.MXFP8, m, n, k, sms=1, rows=True, groups=2)
    parts = Parts(x.codes.flatten(0, 1), x.scale.flatten(0, 1), None, None)
    y = run(sm100_gemm, problem, config, (blocked(w),), parts)
    assert torch.equal(y.double().view(2, m, n), exact(x) @ exact(w).mT)


def test_random_numbers_are_within_the_bound():
    """Tensor cores align 32 products and cut them, and the sum, toward zero."""
    m, n, k = 20, 30, 416
    x, w = bs.quantize(torch.randn(m, k), bs.MXFP8), bs.quantize(torch.randn(n, k), bs.MXFP8)
    config = Config(mma_n=128, ctas=1, panels=1, stages=3)
    problem = problem_of(bs.MXFP8, bs.MXFP8, m, n, k, sms=1)
    y = run(sm100_gemm, problem, config, (blocked(w),), rows_of(x, m))
    check(y, exact(x), exact(w), torch.float32, torch.float32)
