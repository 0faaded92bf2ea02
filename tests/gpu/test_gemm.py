"""The Hopper GEMM against the definition: every tile, format, verb and epilogue."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import sm90_gemm
from blockscale.ops.operand import as_groups
from products import check, check_gated, exact

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not IS_HOPPER, reason="no Hopper GPU")

TWICE_ROUNDED = (1 + 2.0**-8) ** 2 - 1  # to bfloat16
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu_oai")


def roundings(q):
    return 2 if q.format.is_codebook else 0


@pytest.fixture
def placed(fmt):
    """A format that the kernel takes with x in bfloat16."""
    if fragments(fmt) is None or fmt.element.name == "e5m2":
        pytest.skip(f"{fmt.spec} is left to other kernels")
    return fmt


def weight(fmt, *shape):
    source = torch.randn(*shape) * torch.exp2(torch.randint(-3, 4, (shape[-2], 1)))
    q = bs.quantize(source, fmt)
    return q, q.prepare("cuda")


def run(problem, config, weights, x, biases=(None,), sizes=None):
    """Into memory that holds NaN: what is not written is seen."""
    out = torch.full((problem.rows, problem.n), torch.nan, device="cuda", dtype=problem.out_dtype)
    parts = tuple(as_groups(w.operand) for w in weights)
    sm90_gemm.bind(problem, config, parts, frozen=True)(x, biases, sizes, out)
    return out


def of_each_tile(problem):
    """A config for each tile, cluster and way to split."""
    return sorted(sm90_gemm.configs(problem), key=str)


def problem_of(x, w, **options):
    return bs.explain(x, w, **options).problem


@pytest.mark.parametrize("k", [96, 448, 1984])
@pytest.mark.parametrize("m", [40, 300])
def test_every_config(m, k):
    q, w = weight(bs.NVFP4, 280, k)
    x = torch.randn(m, k).bfloat16()
    problem = problem_of(x.cuda(), w, out_dtype=torch.float32)
    for config in of_each_tile(problem):
        y = run(problem, config, (w,), x.cuda())
        check(y.cpu(), x.double(), exact(q), torch.float32, x.dtype)
        assert torch.equal(y, run(problem, config, (w,), x.cuda())), config


@pytest.mark.parametrize("codebook", [bs.KBIT2, bs.KBIT4, bs.KBIT5], ids=str)
def test_every_config_with_a_table_in_shared_memory(codebook):
    """Clusters that share k among them: their sums take the place of the stages."""
    q, w = weight(codebook, 280, 1984)
    x = torch.randn(150, 1984).bfloat16()
    problem = problem_of(x.cuda(), w, out_dtype=torch.float32)
    configs = [config for config in of_each_tile(problem) if config.shared_table]
    assert {config.k_parts for config in configs} >= {1, 2, 3, 4}
    for config in configs:
        y = run(problem, config, (w,), x.cuda())
        check(y.cpu(), x.double(), exact(q), torch.float32, x.dtype, roundings=roundings(q))
        assert torch.equal(y, run(problem, config, (w,), x.cuda())), config


@pytest.mark.parametrize("halved", [bs.MXFP4, bs.KBIT4], ids=str)
def test_every_config_with_turns_of_half_a_scale_group(halved):
    q, w = weight(halved, 280, 608)
    x = torch.randn(150, 608).bfloat16()
    problem = problem_of(x.cuda(), w, out_dtype=torch.float32)
    configs = [config for config in of_each_tile(problem) if config.halved]
    assert {config.split for config in configs} == {True, False}
    for config in configs:
        y = run(problem, config, (w,), x.cuda())
        check(y.cpu(), x.double(), exact(q), torch.float32, x.dtype, roundings=roundings(q))
        assert torch.equal(y, run(problem, config, (w,), x.cuda())), config


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_formats(placed, out_dtype):
    q, w = weight(placed, 200, 640)
    x, bias = torch.randn(130, 640).bfloat16(), torch.randn(200)
    problem = replace(problem_of(x.cuda(), w, out_dtype=out_dtype), bias=True)
    for config in sm90_gemm.configs(problem)[:3]:
        y = run(problem, config, (w,), x.cuda(), (bias[None].cuda(),))
        facts = (x.double(), exact(q), out_dtype, x.dtype, bias)
        check(y.cpu(), *facts, roundings=roundings(q))


def test_float16():
    q, w = weight(bs.NVFP4, 136, 512)
    x = torch.randn(200, 512).half()
    problem = problem_of(x.cuda(), w)
    y = run(problem, sm90_gemm.configs(problem)[0], (w,), x.cuda())
    check(y.cpu(), x.double(), exact(q), torch.float16, x.dtype)


def test_one_hot_rows_read_single_weights(placed):
    """No sum, so nothing is rounded but entries of a codebook, and their products with scales."""
    q, w = weight(placed, 150, 256)
    at = torch.randperm(256)[:200]
    x = torch.nn.functional.one_hot(at, 256).bfloat16()
    problem = problem_of(x.cuda(), w, out_dtype=torch.float32)
    y, expected = (
        run(problem, sm90_gemm.configs(problem)[0], (w,), x.cuda()).cpu(),
        exact(q)[:, at].T,
    )
    if placed.is_codebook:
        assert ((y - expected).abs() <= TWICE_ROUNDED * expected.abs()).all()
    else:
        assert torch.equal(y.double(), expected.float().double())


def test_scales_too_large_to_lift_weights_by():
    k = 1024
    q, _ = weight(bs.MXFP4, 48, k)
    q.scale.random_(0, 133)  # up to 2^5, the largest that leaves room
    q.scale[torch.rand(q.scale.shape) < 0.01] = 133
    q.scale[:, 9] = 240
    at = torch.randperm(k)[:100]
    x = torch.nn.functional.one_hot(at, k).bfloat16()
    w = q.prepare("cuda")
    problem = problem_of(x.cuda(), w, out_dtype=torch.float32)
    for config in sm90_gemm.configs(problem)[:4]:
        assert torch.equal(run(problem, config, (w,), x.cuda()).cpu().double(), exact(q)[:, at].T)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated(activation):
    (gate, g), (up, u) = weight(bs.NVFP4, 200, 320), weight(bs.NVFP4, 200, 320)
    x, biases = torch.randn(150, 320).bfloat16(), (torch.randn(200), torch.randn(200))
    on_gpu = [each.cuda() for each in biases]
    asked = replace(problem_of(x.cuda(), g, up=u, activation=activation), bias=True)
    for config in sm90_gemm.configs(asked):
        y = run(asked, config, (g, u), x.cuda(), tuple(each[None] for each in on_gpu))
        check_gated(y.cpu(), x, gate, up, activation, *biases, roundings=0)


@pytest.mark.parametrize("codebook", [bs.KBIT4, bs.KBIT5], ids=str)
def test_gate_and_up_have_tables_of_their_own(codebook):
    (gate, g), (up, u) = weight(codebook, 200, 320), weight(codebook, 200, 320)
    for each in (up, u):
        each.codebook.copy_(each.codebook * 0.75)
    x = torch.randn(150, 320).bfloat16()
    asked = problem_of(x.cuda(), g, up=u, activation="silu")
    configs = [config for config in sm90_gemm.configs(asked) if config.shared_table]
    assert configs
    for config in configs:
        y = run(asked, config, (g, u), x.cuda(), (None, None))
        check_gated(y.cpu(), x, gate, up, "silu", roundings=roundings(gate))


@pytest.mark.parametrize(
    "sizes", [[100, 0, 300, 1, 40], [0, 0, 0, 0, 0], [0, 441, 0, 0, 0]], ids=str
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_groups(sizes, dtype):
    """Rows of nobody become zero."""
    q, w = weight(bs.NVFP4, 5, 264, 512)
    m = sum(sizes) + 7
    x, groups = torch.randn(m, 512).bfloat16(), torch.tensor(sizes, dtype=dtype)
    problem = bs.explain(x.cuda(), w, group_sizes=groups.cuda()).problem
    for config in of_each_tile(problem):
        y = run(problem, config, (w,), x.cuda(), sizes=groups.cuda()).cpu()
        at = 0
        for group, size in enumerate(sizes):
            rows = slice(at, at + size)
            check(y[rows], x[rows].double(), exact(q[group]), torch.bfloat16, x.dtype)
            at += size
        assert (y[at:] == 0).all(), config


def test_batches():
    q, w = weight(bs.KBIT4, 3, 136, 320)
    x = torch.randn(3, 90, 320).bfloat16()
    problem = problem_of(x.cuda(), w)
    for config in sm90_gemm.configs(problem)[:4]:
        y = run(problem, config, (w,), x.cuda().view(-1, 320)).cpu().view(3, 90, 136)
        for each in range(3):
            facts = (x[each].double(), exact(q[each]), torch.bfloat16, x.dtype)
            check(y[each], *facts, roundings=2)


@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP8, bs.MXFP4], ids=str)
def test_quantised_x(x_format):
    q, w = weight(bs.NVFP4, 136, 512)
    x = bs.quantize(torch.randn(300, 512), x_format)
    told = bs.explain(x.to("cuda"), w, out_dtype=torch.float32)
    assert told.kernel == "sm90_gemm", str(told)
    y = bs.matmul(x.to("cuda"), w, out_dtype=torch.float32)
    check(y.cpu(), exact(x), exact(q), torch.float32, torch.float32)


def test_graphs_and_streams():
    """Split tiles leave sums in memory of the stream's, and of a graph's own."""
    q, w = weight(bs.NVFP4, 1000, 2048)
    x = torch.randn(300, 2048, device="cuda").bfloat16()
    problem = problem_of(x, w)
    config = next(each for each in sm90_gemm.configs(problem) if each.split)
    launch = sm90_gemm.bind(problem, config, (as_groups(w.operand),), frozen=True)
    expected = run(problem, config, (w,), x)
    outs = [torch.empty_like(expected) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
        for _ in range(5):
            launch(x, (None,), None, outs[2])
    for _ in range(20):
        for stream, out in zip(streams, outs, strict=False):
            with torch.cuda.stream(stream):
                launch(x, (None,), None, out)
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)
    check(expected.cpu(), x.cpu().double(), exact(q), torch.bfloat16, x.dtype)


def test_strides_and_odd_widths():
    q, w = weight(bs.NVFP4, 133, 512)  # rows of the output start at odd places
    wide = torch.randn(150, 600, device="cuda").bfloat16()
    x = wide[:, 24:536]
    y = bs.matmul(x, w)
    check(y.cpu(), x.cpu().double(), exact(q), torch.bfloat16, x.dtype)
