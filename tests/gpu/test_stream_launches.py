"""How the streaming kernel is launched: every config, any output and x, CUDA graphs and streams."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import stream
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.occupancy import STATIC_SHARED, asked_shared
from blockscale.ops.operand import as_groups
from gpu.streamed import check, weight
from kinds import one_of_each_kind
from products import exact

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

TABLES = [
    bs.KBIT2,
    bs.KBIT3,
    bs.KBIT4,
    bs.KBIT5,
    bs.KBIT4.replace(codebook=torch.linspace(-0.7, 1.0, 16).tolist()),
]


@pytest.mark.parametrize("some", TABLES, ids=["2", "3", "4", "5", "unequal"])
@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("gated", [False, True])
def test_tables_in_shared_memory_give_the_same_bits_as_in_registers(some, m, gated):
    q, w = weight(some, 272, 1280)
    x = torch.randn(m, 1280).bfloat16()
    problem = bs.explain(x.cuda(), w, out_dtype=torch.float32).problem
    weights, facts = (as_groups(w.operand),), {}
    if gated:
        other = some.replace(codebook=[value / 2 for value in some.codebook])
        weights += (as_groups(weight(other, 272, 1280)[1].operand),)
        facts = {"gated": True, "activation": "silu"}
    problem = replace(problem, **facts)
    limit = problem.device.shared_per_cta - STATIC_SHARED
    tried = 0
    for config in one_of_each_kind(stream.configs(problem)):
        shared = replace(config, shared_table=True, ctas_per_sm=1)
        if asked_shared(shared, facts_of(problem)) > limit:
            continue
        outs = [torch.full((m, 272), float("nan"), device="cuda") for _ in "rs"]
        for out, chosen in zip(outs, (replace(config, shared_table=False), shared), strict=True):
            launch = stream.bind(problem, chosen, weights)
            launch(x.cuda(), (None,) * len(weights), None, out)
        assert torch.equal(*outs), shared
        if not gated:
            check(q, outs[1].cpu(), x.double(), exact(q), torch.float32, x.dtype)
        tried += 1
    assert tried


def test_rows_quantised_one_after_the_other():
    """Kernels start before the one ahead of them ends: x is quantised, decoded and multiplied."""
    _, w = weight(bs.NVFP4, 256, 1024)
    every = torch.randn(30, 1, 1024, device="cuda").bfloat16()
    alone = []
    for x in every:
        alone.append(bs.matmul(x, w, x_format=bs.NVFP4))
        torch.cuda.synchronize()
    for _ in range(3):
        together = [bs.matmul(x, w, x_format=bs.NVFP4) for x in every]
        torch.cuda.synchronize()
        assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("some", [bs.NVFP4, bs.KBIT4], ids=str)
@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 32, 64, 128])
def test_every_config(some, m):
    q, w = weight(some, 132, 1280)
    x = torch.randn(m, 1280).bfloat16()
    problem = bs.explain(x.cuda(), w).problem
    for config in one_of_each_kind(stream.configs(problem)):
        for splits in (1, 2, 3, 5):
            out = torch.full((m, 132), float("nan"), dtype=torch.bfloat16, device="cuda")
            chosen = replace(config, splits=splits)
            launch = stream.bind(problem, chosen, (as_groups(w.operand),))
            launch(x.cuda(), (None,), None, out)
            check(q, out.cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)
            again = torch.empty_like(out)
            launch(x.cuda(), (None,), None, again)
            assert torch.equal(out, again), config


@pytest.mark.parametrize("m", [1, 8, 40])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_outputs_are_stored_wherever_they_are(m, out_dtype):
    """Four at a time, where rows begin at multiples of four and end there; one by one elsewhere."""
    for n, stride, begin in (
        (132, 132, 0),
        (132, 140, 4),
        (132, 135, 0),
        (132, 132, 1),
        (131, 132, 0),
    ):
        q, w = weight(bs.NVFP4, n, 320)
        x, bias = torch.randn(m, 320).bfloat16(), torch.randn(n)
        for added in (None, bias):
            asked = bs.explain(x.cuda(), w, out_dtype=out_dtype).problem
            problem = replace(asked, bias=added is not None)
            place = torch.full(
                (begin + m * stride + 8,), float("nan"), dtype=out_dtype, device="cuda"
            )
            out = place.as_strided((m, n), (stride, 1), begin)
            biases = (None if added is None else added.cuda()[None],)
            parts = (as_groups(w.operand),)
            launch = stream.bind(problem, stream.configs(problem)[0], parts)
            launch(x.cuda(), biases, None, out)
            check(q, out.cpu(), x.double(), exact(q), out_dtype, x.dtype, added)
            out.fill_(0)
            outside = place.isnan().sum().item()
            assert outside == place.numel() - m * n, "nothing is written beside the output"


def test_rows_that_overlap():
    q, w = weight(bs.NVFP4, 48, 256)
    row = torch.randn(256).bfloat16()
    y = bs.matmul(row.cuda().expand(20, 256), w, out_dtype=torch.float32).cpu()
    check(q, y, row.double().expand(20, 256), exact(q), torch.float32, row.dtype)


def test_strided_and_unaligned_x():
    q, w = weight(bs.NVFP4, 37, 128)
    for whole in (
        torch.randn(6, 400).bfloat16()[:, 8:136],
        torch.randn(6, 131).bfloat16()[:, 3:],
        torch.randn(40, 400).bfloat16()[:, 8:136],
    ):
        placed = torch.empty_strided(whole.shape, whole.stride(), dtype=whole.dtype, device="cuda")
        placed.copy_(whole)
        for rows in (slice(None), slice(None, None, 2), slice(1, 2)):
            y = bs.matmul(placed[rows], w).cpu()
            check(q, y, whole[rows].double(), exact(q), torch.bfloat16, whole.dtype)


@pytest.mark.parametrize("m", [2, 40])
def test_graphs_and_streams(m):
    q, w = weight(bs.NVFP4, 512, 4096)  # few rows: k is split
    x = torch.randn(m, 4096).bfloat16()
    held = x.cuda()
    expected = bs.matmul(held, w)
    check(q, expected.cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bs.matmul(held, w)
        z = bs.matmul(held * 2, w)
    held.copy_(torch.randn(m, 4096).bfloat16())
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, bs.matmul(held, w))
    assert torch.equal(z, bs.matmul(held * 2, w))
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for _ in range(20):
        for each in streams:
            with torch.cuda.stream(each):
                results.append(bs.matmul(held, w))
    torch.cuda.synchronize()
    assert all(torch.equal(each, y) for each in results)


def test_nothing_compiles_during_a_capture():
    _, w = weight(bs.KBIT5, 272, 96)
    x = torch.randn(1, 96, dtype=torch.float16, device="cuda")
    refused = pytest.raises(RuntimeError, match="make the same call once before capturing")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        bs.matmul(x, w)


def test_a_choice_is_explained():
    _, w = weight(bs.NVFP4, 64, 256)
    told = str(bs.explain(torch.randn(1, 256, device="cuda").bfloat16(), w))
    assert "runs     stream with " in told
    assert "expects  " in told
    assert " us, bound by " in told
    assert "takes x in bfloat16 or float16" in str(
        bs.explain(torch.randn(1, 256, device="cuda"), w)
    )
