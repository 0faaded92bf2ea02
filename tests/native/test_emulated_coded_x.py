"""The Hopper GEMM that decodes quantised x itself, run by the emulator, against the same GEMM on x
that another launch has decoded: bit for bit, since sums have the same order."""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.dequantize import cuda
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.layouts import canonical
from blockscale.ops.operand import as_rows
from blockscale.problem import Kind
from blockscale.runtime import gpu
from native.emulated_products import problem_of, run
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

DECODING = Config(
    tile_m=64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1, decodes_x=True
)  # fmt: skip
RANDOM = 9  # first rows of x that are unlike activations


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product, cuda)
    maps_on_the_host(monkeypatch)


def any_x(format, m, k):
    """Any codes in the first rows, then any scales but NaN, then a row with NaN; then activations,
    of which each row has a tensor scale of its own."""
    q = bs.quantize(torch.randn(m, k), format)
    q.codes[:4] = torch.randint(0, 256, q.codes[:4].shape)
    q.scale[4:8] = torch.randint(0, 127 if format.block == 16 else 255, q.scale[4:8].shape)
    q.scale[4, 0], q.scale[RANDOM - 1, 0] = 0, 255
    return replace(q, tensor_scale=torch.rand(m) + 0.5) if format.has_tensor_scale else q


def weight(format, *shape):
    return bs.quantize(torch.randn(shape), format).pack(fragments(format))


def check_both_ways(x, weights, config=DECODING, sms=3, sizes=None, **facts):
    """Same bits as by two launches, and NaN where these have NaN."""
    rows, format = as_rows(x.operand), weights[0].format
    (m, k), n = x.shape, weights[0].shape[-2]
    problem = problem_of(
        format, m, n, k, x=str(Kind(x.format, canonical(x.format))),
        device=replace(gpu("h200"), sms=sms), **facts,
    )  # fmt: skip
    assert any(each.decodes_x for each in sm90_gemm.configs(problem))
    biases = (None,) * len(weights)
    y = run(sm90_gemm, problem, config, weights, rows, biases, sizes)
    apart = replace(config, decodes_x=False)
    expected = run(sm90_gemm, problem, apart, weights, rows, biases, sizes)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert y[RANDOM:].isfinite().all()
    return y


@pytest.mark.parametrize(
    "format",
    [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.MXFP8, bs.MXFP8_E5M2],
    ids=str,
)
def test_every_format(format):
    """Two tiles of rows, the second one not full; n is no multiple of a tile."""
    k = 16 * format.block  # the least that rows of scales allow
    y = check_both_ways(any_x(format, 70, k), (weight(bs.NVFP4, 40, k),))
    assert y[RANDOM - 1].isnan().all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_parts_of_tiles(schedule):
    """Stream-K with segments that begin inside a tile: scales are those of its k. A lane decodes
    five rows: four whose scales are decoded together, and one."""
    config = replace(DECODING, tile_m=160, split=True)
    with scheduled(schedule):
        check_both_ways(any_x(bs.NVFP4, 170, 768), (weight(bs.NVFP4, 40, 768),), config)


@pytest.mark.parametrize("schedule", SCHEDULES[1:3], ids=str)
def test_ragged_gated_experts(schedule):
    sizes = torch.tensor([40, 0, 45])
    weights = weight(bs.MXFP8, 3, 40, 512), weight(bs.MXFP8, 3, 40, 512)
    with scheduled(schedule):
        y = check_both_ways(
            any_x(bs.MXFP8, 90, 512), weights, sizes=sizes, groups=3, ragged=True, gated=True,
            activation="silu", verb="grouped_gated_matmul", out="bfloat16",
        )  # fmt: skip
    assert (y[85:] == 0).all()


def test_clusters_that_share_k():
    config = replace(DECODING, k_parts=2)
    check_both_ways(any_x(bs.NVFP4, 50, 768), (weight(bs.NVFP4, 40, 768),), config, sms=4)
