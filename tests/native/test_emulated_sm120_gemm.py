"""The block-scaled GEMM by mma.sync, its own source run by the emulator.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil
from functools import partial

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import sm120_gemm
from blockscale.kernels.matmul.block_scaled import product
from blockscale.kernels.matmul.sm120_gemm.config import Config
from native.emulated_block_scaled import blocked, problem_of, rows_of, small
from native.emulated_products import run
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import check_gated, exact

problem_of = partial(problem_of, "rtx5090")
pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
def test_one_cta_multiplies_several_tiles(schedule):
    """Slots of the ring are used again; k has a tail; half an atom of scales is another tile's."""
    m, n, k = 150, 100, 416
    x, w = small(bs.MXFP8, m, k), small(bs.MXFP8, n, k)
    bias = torch.randint(-9, 9, (1, n)).float()
    problem = problem_of(bs.MXFP8, bs.MXFP8, m, n, k, sms=1, bias=True)
    with scheduled(schedule):
        y = run(sm120_gemm, problem, Config(64, 2), (blocked(w),), rows_of(x, m), (bias,))
    assert torch.equal(y.double(), exact(x) @ exact(w).mT + bias.double())


@pytest.mark.parametrize(
    ("x_format", "w_format"),
    [
        (bs.NVFP4, bs.NVFP4),
        (bs.MXFP4, bs.MXFP4),
        (bs.MXFP8_E5M2, bs.MXFP4),
        (bs.MXFP6_E2M3, bs.MXFP6_E3M2),
    ],
    ids=["nvfp4", "mxfp4", "mxfp8-mxfp4", "mxfp6"],
)
def test_elements_of_other_sizes(x_format, w_format):
    """Of batches, each has atoms of scales of its own."""
    m, n, k = 30, 70, 384
    x, w = small(x_format, 2, m, k), small(w_format, 2, n, k)
    problem = problem_of(x_format, w_format, m, n, k, sms=2, groups=2)
    y = run(sm120_gemm, problem, Config(128, 2), (blocked(w),), rows_of(x, 2 * m))
    assert torch.equal(y.double().view(2, m, n), exact(x) @ exact(w).mT)


def test_ragged_gated_experts():
    """Groups of rows that begin and end inside tiles, one of them empty, and rows of no group."""
    sizes, n, k = torch.tensor([40, 0, 175]), 72, 320
    gate, up = small(bs.NVFP4, 3, n, k), small(bs.NVFP4, 3, n, k)
    x = small(bs.NVFP4, 220, k)
    facts = {"groups": 3, "ragged": True, "gated": True, "activation": "silu"}
    verb = "grouped_gated_matmul"
    problem = problem_of(bs.NVFP4, bs.NVFP4, 220, n, k, 2, "bfloat16", verb, **facts)
    parts = rows_of(x, 220)._replace(tensor_scale=torch.full((220,), 2.0**-9))
    weights = blocked(gate), blocked(up)
    y = run(sm120_gemm, problem, Config(128, 2), weights, parts, (None, None), sizes)
    assert (y[215:] == 0).all()
    values, begin = (exact(x) * 2.0**-7).float(), 0  # which float32 holds
    for i, size in enumerate(sizes.tolist()):
        rows = slice(begin, begin + size)
        check_gated(y[rows], values[rows], gate[i], up[i], "silu")
        begin += size
