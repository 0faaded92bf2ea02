"""The Hopper GEMM's own source, run by the emulator: several CTAs at once, in several schedules.

Inputs are lossless, so that results are compared bit for bit.
"""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import sm90_gemm
from blockscale.kernels.matmul.fragments import product
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.ops.operand import as_groups
from blockscale.runtime import gpu
from native.emulated_products import lossless, numbers, problem_of, run, scales_far_apart
from native.host_function import SCHEDULES, maps_on_the_host, on_the_host, scheduled
from products import check_gated, exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    on_the_host(monkeypatch, product)
    maps_on_the_host(monkeypatch)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_clusters_split_tiles(schedule):
    """Three clusters of two CTAs: x by multicast, and parts of tiles through global memory."""
    m, n, k = 90, 250, 640
    q, w = lossless(bs.NVFP4, n, k)
    x, bias = numbers(m, k), torch.randint(-9, 9, (1, n)).float()
    config = Config(tile_m=64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=2, split=True)
    problem = problem_of(bs.NVFP4, m, n, k, device=replace(gpu("h200"), sms=6), bias=True)
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (w,), x, (bias,))
    assert torch.equal(y.double(), x.double() @ exact(q).mT + bias.double())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "sms", "cluster"),
    [(64, 100, 2560, 5, 1), (450, 100, 768, 3, 1), (450, 250, 640, 6, 2)],
    ids=["five parts", "then whole tiles", "then whole tiles of clusters"],
)
def test_parts_of_tiles_come_back_through_the_ring(schedule, m, n, k, sms, cluster):
    """Sums of several parts one after the other, more pieces than there are stages, and operands of
    the next tile behind them."""
    q, w = lossless(bs.NVFP4, n, k)
    x = numbers(m, k)
    config = Config(64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=cluster, split=True)
    problem = problem_of(bs.NVFP4, m, n, k, device=replace(gpu("h200"), sms=sms))
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_cluster_shares_the_k_of_a_tile(schedule):
    """Three CTAs, of which one has less of k and the last no chunk to store."""
    m, n, k = 60, 250, 640
    q, w = lossless(bs.NVFP4, n, k)
    x, bias = numbers(m, k), torch.randint(-9, 9, (1, n)).float()
    config = Config(64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1, k_parts=3)
    problem = problem_of(bs.NVFP4, m, n, k, bias=True)
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (w,), x, (bias,))
    assert torch.equal(y.double(), x.double() @ exact(q).mT + bias.double())


def test_gate_and_up_of_clusters_that_share_k():
    """Pairs of chunks have one owner; a warp has two tiles; of two rows of tiles one is short."""
    m, n, k = 170, 130, 512
    (gate, g), (up, u) = lossless(bs.MXFP4, n, k), lossless(bs.MXFP4, n, k)
    x = numbers(m, k) / 64
    config = Config(128, warpgroups=2, tiles_per_warp=2, stages=3, cluster=1, k_parts=2)
    problem = problem_of(
        bs.MXFP4, m, n, k, out="bfloat16", verb="gated_matmul", activation="silu", gated=True
    )
    with scheduled(SCHEDULES[1]):
        y = run(sm90_gemm, problem, config, (g, u), x, (None, None))
    check_gated(y, x, gate, up, "silu")


@pytest.mark.parametrize("halved", [False, True], ids=["whole turns", "halved"])
@pytest.mark.parametrize("schedule", SCHEDULES[1:3], ids=str)
def test_ragged_gated_experts(schedule, halved):
    """Groups of rows, one of them empty, and rows of no group; bfloat16 by stmatrix."""
    sizes, n, k = torch.tensor([40, 0, 75]), 70, 288
    (gate, g), (up, u) = lossless(bs.MXFP4, 3, n, k), lossless(bs.MXFP4, 3, n, k)
    x = numbers(120, k) / 64
    config = Config(64, warpgroups=2, tiles_per_warp=1, stages=3, cluster=1, halved=halved)
    problem = problem_of(
        bs.MXFP4, 120, n, k, out="bfloat16", device=replace(gpu("h200"), sms=3), groups=3,
        verb="grouped_gated_matmul", activation="silu", ragged=True, gated=True,
    )  # fmt: skip
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (g, u), x, (None, None), sizes)
    assert (y[115:] == 0).all()
    begin = 0
    for i, size in enumerate(sizes.tolist()):
        rows = slice(begin, begin + size)
        check_gated(y[rows], x[rows], gate[i], up[i], "silu")
        begin += size


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
@pytest.mark.parametrize(
    "facts",
    [{"cluster": 2, "split": True}, {"k_parts": 2}, {"tiles_per_warp": 2}, {"shared_table": True}],
    ids=lambda facts: " ".join(facts),
)
def test_turns_of_half_the_k_whose_scales_stand_together(facts, schedule):
    """Odd ones begin inside a scale group, and so may parts of tiles; the last one ends in one."""
    m, n, k = 90, 250, 608
    format = bs.KBIT4 if "shared_table" in facts else bs.MXFP6_E2M3
    q, w = lossless(format, n, k)
    if format.is_codebook:
        with_codebook((q, w), levels(len(q.codebook)))
    x = numbers(m, k)
    usual = {"warpgroups": 2, "tiles_per_warp": 1, "stages": 3, "cluster": 1, "halved": True}
    config = Config(64, **{**usual, **facts})
    problem = problem_of(format, m, n, k, device=replace(gpu("h200"), sms=6))
    assert config.turn_k(format) == 128
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)


@pytest.mark.parametrize("tiles_per_warp", [1, 2])
def test_scales_too_large_to_lift_weights_by(tiles_per_warp):
    """Some k tiles have such scales and others have none; single weights, so nothing is rounded."""
    m, n, k = 60, 150, 1024
    q, w = scales_far_apart(n, k)
    at = torch.randperm(k)[:m]
    x = torch.nn.functional.one_hot(at, k).bfloat16()
    config = Config(64, warpgroups=2, tiles_per_warp=tiles_per_warp, stages=3, cluster=1)
    y = run(sm90_gemm, problem_of(bs.MXFP4, m, n, k), config, (w,), x)
    assert y[:, 0].isnan().all()
    assert torch.equal(y[:, 1:].double(), exact(q)[1:, at].T)


def levels(count):
    """Small integers, mirrored: a symmetric table."""
    half = torch.arange(1, count // 2 + 1)
    return torch.cat([-half.flip(0), half]).float()


def with_codebook(weights, table):
    for each in weights:
        each.codebook.copy_(table)


@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
@pytest.mark.parametrize("mirrored", [True, False], ids=["mirrored", "not"])
@pytest.mark.parametrize("format", [bs.KBIT2, bs.KBIT4, bs.KBIT5], ids=str)
def test_codes_are_looked_up_in_shared_memory(format, mirrored, schedule):
    """Every second step of 2 and 4 bits; all of 5, but for tables without symmetry, which stay in
    registers."""
    m, n, k = 90, 250, 640
    q, w = lossless(format, n, k)
    table = levels(len(q.codebook))
    with_codebook((q, w), table if mirrored else table + 3)
    x = numbers(m, k)
    config = Config(64, 2, tiles_per_warp=1, stages=3, cluster=1, split=True, shared_table=True)
    problem = problem_of(format, m, n, k, device=replace(gpu("h200"), sms=3))
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)


@pytest.mark.parametrize("schedule", SCHEDULES[1:3], ids=str)
@pytest.mark.parametrize("format", [bs.KBIT4, bs.KBIT5], ids=str)
def test_sums_are_exchanged_behind_a_table(format, schedule):
    """Sums of a cluster take the place of the stages, and leave the tables alone."""
    m, n, k = 60, 250, 640
    q, w = lossless(format, n, k)
    with_codebook((q, w), levels(len(q.codebook)))
    x = numbers(m, k)
    config = Config(64, 2, tiles_per_warp=1, stages=3, cluster=1, k_parts=3, shared_table=True)
    with scheduled(schedule):
        y = run(sm90_gemm, problem_of(format, m, n, k), config, (w,), x)
    assert torch.equal(y.double(), x.double() @ exact(q).mT)


def test_a_table_that_loses_its_symmetry():
    """The next call has a kernel for any table, and as much memory as that one asks for."""
    m, n, k = 40, 100, 256
    q, w = lossless(bs.KBIT5, n, k)
    problem, x = problem_of(bs.KBIT5, m, n, k), numbers(m, k)
    config = Config(64, 2, tiles_per_warp=1, stages=3, cluster=1, shared_table=True)
    launch = sm90_gemm.bind(problem, config, (as_groups(w.operand),), frozen=True)
    for table in (levels(32), levels(32) + 3, levels(32)):
        with_codebook((q, w), table)
        out = torch.full((m, n), torch.nan)
        launch(x, (None,), None, out)
        assert torch.equal(out.double(), x.double() @ exact(q).mT)


@pytest.mark.parametrize("format", [bs.KBIT4, bs.KBIT5], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES[1:3], ids=str)
def test_gate_and_up_have_tables_of_their_own(format, schedule):
    """And groups of rows, one of them empty."""
    sizes, n, k = torch.tensor([40, 0, 75]), 70, 288
    (gate, g), (up, u) = lossless(format, 3, n, k), lossless(format, 3, n, k)
    with_codebook((gate, g), levels(len(gate.codebook)))
    with_codebook((up, u), 2 * levels(len(up.codebook)))
    x = numbers(115, k) / 64
    config = Config(64, 2, tiles_per_warp=1, stages=3, cluster=1, shared_table=True)
    problem = problem_of(
        format, 115, n, k, device=replace(gpu("h200"), sms=3), groups=3,
        verb="grouped_gated_matmul", activation="silu", ragged=True, gated=True,
    )  # fmt: skip
    with scheduled(schedule):
        y = run(sm90_gemm, problem, config, (g, u), x, (None, None), sizes)
    check_gated(y[:40], x[:40], gate[0], up[0], "silu")
    check_gated(y[40:], x[40:], gate[2], up[2], "silu")
