"""The streaming GEMM's own source, run by the emulator.

Rings of cp.async and TMA, mma.sync and wgmma, split-K in a cluster. Inputs are lossless, so that
results are compared bit for bit.
"""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import stream
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.stream.config import Config
from native.emulated_products import lossless, numbers, problem_of, run, scales_far_apart
from native.host_function import SCHEDULES, counts, maps_on_the_host, on_the_host, scheduled
from products import exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
FEW = Config(
    tile_m=1, tiles_per_warp=1, n_warps=2, k_warps=2, stages=3, tile_k=256, ctas_per_sm=1, splits=1,
)  # fmt: skip
CLUSTER = Config(
    tile_m=8, tiles_per_warp=2, n_warps=4, k_warps=1, stages=2, tile_k=256, ctas_per_sm=1, splits=2,
)  # fmt: skip
WGMMA = Config(
    tile_m=16, tiles_per_warp=1, n_warps=4, k_warps=2, stages=2, tile_k=128, ctas_per_sm=1,
    splits=2, wgmma=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("config", [FEW, CLUSTER, WGMMA], ids=["few", "mma", "wgmma"])
def test_products(config, schedule):
    m, n, k = config.tile_m + (config.tile_m > 4) * 3, 150, 1120
    q, w = lossless(bs.NVFP4, n, k)
    x = numbers(m, k)
    with scheduled(schedule):
        y = run(stream, problem_of(bs.NVFP4, m, n, k), config, (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)


@pytest.mark.parametrize(
    "config", [FEW, CLUSTER, replace(CLUSTER, tile_m=16), WGMMA], ids=["few", "8", "16", "wgmma"]
)
def test_scales_too_large_to_lift_weights_by(config):
    """Some k tiles have such scales and others have none; single weights, so nothing is rounded."""
    n, k = 150, 1120
    q, w = scales_far_apart(n, k)
    at = torch.randperm(k)[: config.tile_m]
    x = torch.nn.functional.one_hot(at, k).bfloat16()
    y = run(stream, problem_of(bs.MXFP4, config.tile_m, n, k), config, (w,), x)
    assert y[:, 0].isnan().all()
    assert torch.equal(y[:, 1:].double(), exact(q)[1:, at].T)


def test_gate_and_up_with_scales_too_large_to_lift_weights_by():
    """Tiles of both are a warp's, and their scales stand apart."""
    m, n, k = 16, 150, 1120
    (gate, g), (up, u) = scales_far_apart(n, k), scales_far_apart(n, k)
    at = torch.randperm(k)[:m]
    x = torch.nn.functional.one_hot(at, k).bfloat16()
    problem = problem_of(bs.MXFP4, m, n, k, verb="gated_matmul", activation="silu", gated=True)
    y = run(stream, problem, replace(WGMMA, tiles_per_warp=2), (g, u), x, (None, None))
    wanted = torch.nn.functional.silu(exact(gate)[:, at].T) * exact(up)[:, at].T
    assert torch.equal(y.isnan()[:, 1:], wanted.isnan()[:, 1:])
    within = 2.0**-20 * wanted.abs() + 2.0**-126
    close = (y.double() - wanted).abs() <= within
    assert (close | wanted.isnan() | (wanted.abs() > 2.0**127))[:, 1:].all()


@pytest.mark.parametrize("n", [3, 20, 128, 135])
@pytest.mark.parametrize("tile_m", [8, 64])  # one quad of a thread at a time, or several
def test_no_load_from_dsmem_is_left_behind(tile_m, n):
    """A load whose value nobody stores need not be over when the CTA that owns the memory ends."""
    q, w = lossless(bs.NVFP4, n, 512)
    x = numbers(tile_m, 512)
    problem = problem_of(bs.NVFP4, tile_m, n, 512)
    y = run(stream, problem, replace(CLUSTER, tile_m=tile_m), (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)
    assert counts().dsmem_loads == tile_m * -(-n // 4)  # each quad is stored by one of two CTAs
