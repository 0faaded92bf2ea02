"""Many rows of quantised x, which the Hopper GEMM decodes itself, against the same GEMM on x that
another launch has decoded: bit for bit, since sums have the same order."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import sm90_gemm
from blockscale.layouts import canonical
from blockscale.ops.operand import as_groups, as_rows
from blockscale.problem import Kind
from products import check, exact

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not IS_HOPPER, reason="no Hopper GPU")

CODED = [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP6_E3M2, bs.MXFP8, bs.MXFP8_E5M2]


def random_x(fmt, m, k):
    """Any codes and any scales in the first rows, NaN among them; then activations."""
    q = bs.quantize(torch.randn(m, k), fmt)
    q.codes[:9] = torch.randint(0, 256, q.codes[:9].shape)
    q.scale[3:20] = torch.randint(0, 256, q.scale[3:20].shape)
    if fmt.has_tensor_scale:
        q = replace(q, tensor_scale=torch.rand(m) + 0.5)
    return q.to("cuda")


def weight(fmt, *shape):
    q = bs.quantize(torch.randn(shape), fmt)
    return q, q.prepare("cuda")


def problem_of(x, w, **facts):
    """Of x [m, k] and weights [n, k]."""
    verb = facts.pop("verb", "matmul")
    asked = bs.explain(torch.randn(x.shape[0], x.shape[1], device="cuda").bfloat16(), w).problem
    kind = str(Kind(x.format, canonical(x.format)))
    return replace(asked, verb=verb, x=kind, **facts)


def run(problem, config, weights, x, sizes=None):
    """Into memory that holds NaN: what is not written is seen."""
    out = torch.full((problem.rows, problem.n), torch.nan, device="cuda", dtype=problem.out_dtype)
    parts = tuple(as_groups(w.operand) for w in weights)
    launch = sm90_gemm.bind(problem, config, parts, frozen=True)
    launch(as_rows(x.operand), (None,) * len(weights), sizes, out)
    return out


def one_of_each_kind(problem, most=5):
    """Tiles of different heights, whole or split in either way."""
    kinds = {}
    for config in sm90_gemm.configs(problem):
        if config.decodes_x:
            kind = config.tile_m // 128, config.tiles_per_warp, config.split, config.k_parts > 1
            kinds.setdefault(kind, config)
    return list(kinds.values())[:most]


def check_both_ways(problem, weights, x, sizes=None, most=5):
    configs = one_of_each_kind(problem, most)
    assert configs
    for config in configs:
        y = run(problem, config, weights, x, sizes)
        expected = run(problem, replace(config, decodes_x=False), weights, x, sizes)
        assert torch.equal(y.isnan(), expected.isnan()), config
        assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0)), config
        assert y[20:].isfinite().all(), config
    return y


@pytest.mark.parametrize("m", [70, 300])
@pytest.mark.parametrize("fmt", CODED, ids=str)
def test_every_format(fmt, m):
    _, w = weight(bs.NVFP4, 520, 2048)
    x = random_x(fmt, m, 2048)
    check_both_ways(problem_of(x, w, out="float32"), (w,), x, most=5 if m == 300 else 2)


@pytest.mark.parametrize("w_format", [bs.MXFP8, bs.MXFP6_E3M2, bs.KBIT4], ids=str)
def test_other_weights(w_format):
    _, w = weight(w_format, 520, 1024)
    x = random_x(bs.NVFP4, 200, 1024)
    check_both_ways(problem_of(x, w), (w,), x, most=2)


@pytest.mark.parametrize("fmt", [bs.NVFP4, bs.MXFP8], ids=str)
def test_gated(fmt):
    (_, gate), (_, up) = weight(fmt, 520, 1024), weight(fmt, 520, 1024)
    x = random_x(fmt, 200, 1024)
    facts = {"verb": "gated_matmul", "gated": True, "activation": "silu"}
    check_both_ways(problem_of(x, gate, **facts), (gate, up), x, most=3)


@pytest.mark.parametrize("fmt", [bs.NVFP4, bs.MXFP8], ids=str)
def test_ragged_groups(fmt):
    _, w = weight(fmt, 5, 264, 1024)
    x, sizes = random_x(fmt, 400, 1024), torch.tensor([70, 0, 200, 1, 99], device="cuda")
    asked = problem_of(x, w[0], verb="grouped_matmul", m=400, groups=5, ragged=True)
    y = check_both_ways(asked, (w,), x, sizes, most=3)
    assert not y[370:].any()


def test_against_the_definition():
    """The call that users make, whichever way it chooses."""
    q, w = weight(bs.NVFP4, 7168, 2048)
    x = bs.quantize(torch.randn(128, 2048), bs.NVFP4)
    y = bs.matmul(x.to("cuda"), w).cpu()
    check(y, exact(x), exact(q), torch.bfloat16, torch.bfloat16, roundings=0)


def test_graphs_and_calls_that_follow_each_other():
    """Weights are read ahead of the kernel before, from the third call on; x never is."""
    _, w = weight(bs.NVFP4, 512, 1024)
    every = [bs.quantize(torch.randn(130, 1024, device="cuda"), bs.NVFP4) for _ in range(8)]
    held = every[0].to("cuda")
    held = replace(
        held,
        codes=held.codes.clone(),
        scale=held.scale.clone(),
        tensor_scale=torch.ones(130, device="cuda"),
    )
    asked = problem_of(held, w)
    config = one_of_each_kind(asked)[0]
    launch = sm90_gemm.bind(asked, config, (as_groups(w.operand),), frozen=True)
    rows, out = as_rows(held.operand), torch.empty(130, 512, dtype=torch.bfloat16, device="cuda")

    def call():
        launch(rows, (None,), None, out)

    def take(x):
        held.codes.copy_(x.codes)
        held.scale.copy_(x.scale)

    alone = []
    for x in every:
        take(x)
        call()
        torch.cuda.synchronize()
        alone.append(out.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for ask in (call, graph.replay):
        together = []
        for x in every:
            take(x)
            ask()
            together.append(out.clone())
        torch.cuda.synchronize()
        assert all(map(torch.equal, together, alone))


def test_rows_that_start_anywhere():
    _, w = weight(bs.NVFP4, 512, 512)
    x = random_x(bs.NVFP4, 70, 512)
    codes, scale = (
        torch.empty(part.numel() + 1, dtype=torch.uint8, device="cuda")
        for part in (x.codes, x.scale)
    )
    codes[1:].copy_(x.codes.flatten())
    scale[1:].copy_(x.scale.flatten())
    odd = replace(x, codes=codes[1:].view_as(x.codes), scale=scale[1:].view_as(x.scale))
    asked = problem_of(x, w)
    config = one_of_each_kind(asked)[0]
    y, expected = run(asked, config, (w,), odd), run(asked, config, (w,), x)
    assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0))
