"""Experts, batches, and gate and up, by the streaming kernel on a GPU against the definition."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import stream
from blockscale.ops.operand import as_groups
from gpu.streamed import SOME, check, check_gated, runs, weight
from kinds import one_of_each_kind
from products import exact
from ways import Way

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("m", [1, 5, 16, 40])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gated(some, m, activation):
    (gate, g), (up, u) = weight(some, 56, 256), weight(some, 56, 256)
    x, bias = torch.randn(m, 256).bfloat16() / 8, torch.randn(56)
    with Way("stream").only():
        runs("stream", x.cuda(), g, u)
        y = bs.gated_matmul(x.cuda(), g, u, activation, bias.cuda(), None)
    check_gated(y.cpu(), x, gate, up, activation, bias)


def test_gate_and_up_with_tables_of_their_own():
    first, second = (
        bs.KBIT4.replace(codebook=sorted((torch.rand(16) * 2 - 1).tolist())) for _ in "ab"
    )
    gate, up = bs.quantize(torch.randn(32, 128), first), bs.quantize(torch.randn(32, 128), second)
    x = torch.randn(3, 128).bfloat16() / 4
    y = bs.gated_matmul(x.cuda(), gate.prepare("cuda"), up.prepare("cuda"))
    check_gated(y.cpu(), x, gate, up, "silu")


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_groups(some, dtype):
    q, w = weight(some, 5, 40, 128)
    sizes = torch.tensor([3, 0, 1, 20, 2], dtype=dtype)
    x = torch.randn(30, 128).bfloat16()  # four rows belong to nobody
    problem = bs.explain(x.cuda(), w, group_sizes=sizes.cuda(), out_dtype=torch.float32).problem
    launch = stream.bind(problem, stream.configs(problem)[0], (as_groups(w.operand),))
    y = torch.full((30, 40), torch.nan, device="cuda")
    launch(x.cuda(), (None,), sizes.cuda(), y)
    y, start = y.cpu(), 0
    for i, size in enumerate(sizes.tolist()):
        part = slice(start, start + size)
        check(q, y[part], x[part].double(), exact(q)[i], torch.float32, x.dtype)
        start += size
    assert (y[start:] == 0).all()


@pytest.mark.parametrize("some", SOME, ids=str)
def test_groups_of_many_rows(some):
    """More than are multiplied at a time, so that weights are read again."""
    q, w = weight(some, 4, 72, 448)
    sizes = torch.tensor([150, 0, 30, 7])
    x = torch.randn(187, 448).bfloat16()
    y = bs.grouped_matmul(x.cuda(), w, sizes.cuda(), out_dtype=torch.float32).cpu()
    for i, part in ((0, slice(0, 150)), (2, slice(150, 180)), (3, slice(180, 187))):
        check(q, y[part], x[part].double(), exact(q)[i], torch.float32, x.dtype)


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("rows", [30, 90, 200])
@pytest.mark.parametrize("k", [320, 576])
def test_enough_groups_for_small_blocks(some, rows, k):
    """Some groups have more rows than are multiplied at a time."""
    n, groups = 704, 48
    (gate, g), (up, u) = weight(some, groups, n, k), weight(some, groups, n, k)
    sizes = torch.bincount(torch.randint(groups, (rows,)), minlength=groups)
    ends = sizes.cumsum(0).tolist()
    parts = {i: slice(ends[i] - size, ends[i]) for i, size in enumerate(sizes.tolist()) if size}
    x = (torch.randn(rows, k) / 8).bfloat16()
    held, held_sizes = x.cuda(), sizes.cuda()
    problem = bs.explain(held, g, group_sizes=held_sizes, out_dtype=torch.float32).problem
    weights = {i: exact(gate[i]) for i in parts}
    for config in one_of_each_kind(stream.configs(problem)):
        y = torch.full((rows, n), float("nan"), device="cuda")
        launch = stream.bind(problem, config, (as_groups(g.operand),))
        launch(held, (None,), held_sizes, y)
        for i, part in parts.items():
            check(gate, y[part].cpu(), x[part].double(), weights[i], torch.float32, x.dtype)
        again = torch.empty_like(y)
        launch(held, (None,), held_sizes, again)
        assert torch.equal(y, again), config
    y = bs.grouped_gated_matmul(held, g, u, held_sizes).cpu()
    for i, part in parts.items():
        check_gated(y[part], x[part], gate[i], up[i], "silu")


def test_many_experts_and_gating():
    q, w = weight(bs.NVFP4, 512, 32, 64)
    up, u = weight(bs.NVFP4, 512, 32, 64)
    sizes = torch.zeros(512, dtype=torch.int64)
    sizes[torch.randperm(512)[:10]] = 1
    sizes[7] += 9
    x = torch.randn(int(sizes.sum()), 64).bfloat16()
    y = bs.grouped_gated_matmul(x.cuda(), w, u, sizes.cuda()).cpu()
    start = 0
    for i, size in enumerate(sizes.tolist()):
        if size:
            part = slice(start, start + size)
            check_gated(y[part], x[part], q[i], up[i], "silu")
        start += size


def test_sizes_beyond_the_rows_are_clipped():
    _, w = weight(bs.NVFP4, 3, 16, 64)
    x = torch.randn(5, 64).bfloat16().cuda()
    y = bs.grouped_matmul(x, w, torch.tensor([4, -2, 9]).cuda())
    assert torch.equal(y, bs.grouped_matmul(x, w, torch.tensor([4, 0, 1]).cuda()))


@pytest.mark.parametrize("some", SOME, ids=str)
def test_batches(some):
    q, w = weight(some, 3, 48, 192)
    for m in (2, 20):
        x = torch.randn(3, m, 192).bfloat16()
        y = bs.matmul(x.cuda(), w).cpu()
        for i in range(3):
            check(q, y[i], x[i].double(), exact(q)[i], torch.bfloat16, x.dtype)


@pytest.mark.parametrize("some", SOME, ids=str)
def test_long_sums_of_many_rows(some):
    """Stages are filled again, in several turns over rows of x, gated and by groups."""
    n, k, sizes = 130, 8192, [150, 0, 40]
    (gate, g), (up, u) = weight(some, 3, n, k), weight(some, 3, n, k)
    x = torch.randn(200, k).bfloat16() / 64
    check(gate, bs.matmul(x.cuda(), g[0]).cpu(), x.double(), exact(gate)[0], x.dtype, x.dtype)
    check_gated(bs.gated_matmul(x.cuda(), g[0], u[0]).cpu(), x, gate[0], up[0], "silu")
    grouped = bs.grouped_gated_matmul(x[:190].cuda(), g, u, torch.tensor(sizes).cuda()).cpu()
    for i, part in ((0, slice(0, 150)), (2, slice(150, 190))):
        check_gated(grouped[part], x[part], gate[i], up[i], "silu")
