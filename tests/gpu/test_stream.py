"""Products on a GPU against the definition. Skipped where there is none."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import stream
from blockscale.kernels.matmul.stream.config import STATIC_SHARED
from blockscale.layouts import canonical
from blockscale.ops.operand import as_groups
from kinds import one_of_each_kind
from products import check as check_product
from products import check_gated as check_gated_product
from products import exact, scaled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

TWICE_ROUNDED = (1 + 2.0**-8) ** 2 - 1  # to bfloat16


def roundings(q):
    """Entries of a codebook are rounded to x's dtype, and their products with scales may be; floats
    are exact."""
    return 2 if q.format.is_codebook else 0


def check(q, *facts, **more):
    check_product(*facts, **more, roundings=roundings(q))


def check_gated(y, x, gate, up, *facts, **more):
    check_gated_product(y, x, gate, up, *facts, **more, roundings=roundings(gate))


SOME = [bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.MXFP8]


@pytest.fixture
def placed(fmt):
    """A format that the streaming kernel knows."""
    if fragments(fmt) is None:
        pytest.skip(f"{fmt.spec} is left to other kernels")
    return fmt


def weight(fmt, *shape):
    q = bs.quantize(torch.randn(*shape) * torch.exp2(torch.randint(-3, 4, (shape[-2], 1))), fmt)
    return q, q.prepare("cuda")


def runs(kernel, *arguments, **options):
    told = bs.explain(*arguments, **options)
    assert told.kernel == kernel, str(told)


@pytest.mark.parametrize("m", [1, 2, 3, 8, 13, 24, 32, 50, 64, 70, 128])
def test_rows(placed, m):
    q, w = weight(placed, 100, 320)
    x, bias = torch.randn(m, 320).bfloat16(), torch.randn(100)
    if m <= 64:
        runs("stream", x.cuda(), w)
    for out_dtype in (torch.bfloat16, torch.float32):
        y = bs.linear(x.cuda(), w, bias.cuda(), out_dtype=out_dtype)
        check(q, y.cpu(), x.double(), exact(q), out_dtype, x.dtype, bias)


@pytest.mark.parametrize("m", [1, 4, 16, 40])
def test_float16(placed, m):
    q, w = weight(placed, 48, 512)
    x = torch.randn(m, 512).half()
    y = bs.matmul(x.cuda(), w, out_dtype=torch.float32)
    check(q, y.cpu(), x.double(), exact(q), torch.float32, x.dtype)


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16, 33])
def test_one_hot_rows_read_single_weights(placed, m):
    """No sum, so nothing is rounded but entries of a codebook, and their products with scales."""
    q, w = weight(placed, 33, 256)
    at = torch.randperm(256)[:m]
    x = torch.nn.functional.one_hot(at, 256).bfloat16()
    y = bs.matmul(x.cuda(), w, out_dtype=torch.float32).cpu()
    expected = exact(q)[:, at].T
    if placed.is_codebook:
        assert ((y - expected).abs() <= TWICE_ROUNDED * expected.abs()).all()
    else:
        assert torch.equal(y.double(), expected.float().double())


def random_bytes(fmt, n, k):
    """Every code and every scale byte, NaN and unused ones too."""
    place, shape = canonical(fmt), (n, k)
    codes = torch.randint(0, 256, place.code_storage_shape(fmt, shape), dtype=torch.uint8)
    scale = torch.randint(0, 256, place.scale_storage_shape(fmt, shape), dtype=torch.uint8)
    return bs.QTensor.from_storage(fmt, codes, scale)


@pytest.mark.parametrize("m", [1, 8, 16])
def test_every_code_and_scale(placed, m):
    q = random_bytes(placed, 512, placed.block)  # one block to a row: its NaN stay its own
    x = (torch.randn(m, placed.block) * 2.0**-64).bfloat16()
    y = bs.matmul(x.cuda(), q.prepare("cuda"), out_dtype=torch.float32).cpu()
    expected = x.double() @ scaled(q).T
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())
    sound = expected.isfinite().all(0)
    mass = x.double().abs() @ scaled(q)[sound].abs().T
    error = (y[:, sound].double() - expected[:, sound]).abs()
    small = 2.0**-126  # where float32 has fewer bits
    rounded = TWICE_ROUNDED if placed.is_codebook else 0
    assert (error <= (rounded + 2.0**-18) * mass + small).all()


@pytest.mark.parametrize("m", [16, 40])
def test_scales_too_large_to_lift_weights_by(m):
    """Some chunks of k have such scales and others have none; sums of both come together."""
    k = 1024
    q = random_bytes(bs.MXFP4, 48, k)
    q.scale.random_(0, 133)  # up to 2^5, the largest that leaves room
    q.scale[torch.rand(q.scale.shape) < 0.01] = 133
    q.scale[:, 9] = 240
    w, at = q.prepare("cuda"), torch.randperm(k)[:m]
    x = torch.nn.functional.one_hot(at, k).bfloat16()
    problem = bs.explain(x.cuda(), w, out_dtype=torch.float32).problem
    for config in one_of_each_kind(stream.configs(problem)):
        y = torch.empty(m, 48, device="cuda")
        stream.bind(problem, config, (as_groups(w.operand),))(x.cuda(), (None,), None, y)
        assert torch.equal(y.cpu().double(), exact(q)[:, at].T), config


@pytest.mark.parametrize("some", [bs.KBIT4, bs.KBIT5], ids=str)
def test_unequal_halves_of_a_table(some):
    table = torch.linspace(-0.7, 1.0, 1 << some.element.bits).tolist()
    q, w = weight(some.replace(codebook=table), 64, 256)
    for m in (1, 8, 40):
        x = torch.randn(m, 256).bfloat16()
        check(q, bs.matmul(x.cuda(), w).cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


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
        if shared.shared_bytes(problem) > limit:
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


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("m", [1, 5, 16, 40])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gated(some, m, activation):
    (gate, g), (up, u) = weight(some, 56, 256), weight(some, 56, 256)
    x, bias = torch.randn(m, 256).bfloat16() / 8, torch.randn(56)
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


@pytest.mark.parametrize("some", SOME, ids=str)
def test_more_rows_than_are_multiplied_at_a_time(some):
    q, w = weight(some, 200, 4096)
    x = torch.randn(200, 4096).bfloat16()
    problem, y = bs.explain(x.cuda(), w).problem, torch.empty(200, 200, device="cuda").bfloat16()
    launch = stream.bind(problem, stream.configs(problem)[0], (as_groups(w.operand),))
    launch(x.cuda(), (None,), None, y)
    check(q, y.cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


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


@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP8, bs.MXFP4], ids=str)
@pytest.mark.parametrize("m", [4, 20])
def test_both_quantised(x_format, m):
    q, w = weight(bs.NVFP4, 48, 192)
    x = torch.randn(m, 192).bfloat16()
    runs("stream", x.cuda(), w, x_format=x_format)
    y = bs.matmul(x.cuda(), w, x_format=x_format, out_dtype=torch.float32).cpu()
    rounded = torch.stack([exact(bs.quantize(row[None], x_format))[0] for row in x])
    check(q, y, rounded, exact(q), torch.float32, torch.bfloat16)


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


def test_rows_that_overlap():
    q, w = weight(bs.NVFP4, 48, 256)
    row = torch.randn(256).bfloat16()
    y = bs.matmul(row.cuda().expand(20, 256), w, out_dtype=torch.float32).cpu()
    check(q, y, row.double().expand(20, 256), exact(q), torch.float32, row.dtype)


@pytest.mark.parametrize("k", [16, 48, 64, 112, 2880])
def test_any_k(k):
    q, w = weight(bs.NVFP4, 37, k)
    for m in (1, 9, 33):
        x = torch.randn(m, k).bfloat16()
        check(q, bs.matmul(x.cuda(), w).cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


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


def test_more_weights_than_32_bits_count():
    n, k = 2**17 + 16, 2**14
    place = fragments(bs.NVFP4)
    codes = torch.randint(
        0, 256, place.code_storage_shape(bs.NVFP4, (n, k)), dtype=torch.uint8, device="cuda"
    )
    scale = torch.randint(
        32, 96, place.scale_storage_shape(bs.NVFP4, (n, k)), dtype=torch.uint8, device="cuda"
    )
    w = bs.QTensor(bs.NVFP4, (n, k), codes, scale, torch.ones((), device="cuda"), None, place)
    x = torch.randn(1, k, device="cuda").bfloat16()
    y = bs.matmul(x, w, out_dtype=torch.float32)
    for first in (0, 2**16, n - 16):
        rows = w[first : first + 16]
        expected = x.double() @ rows.dequantize(torch.float32).double().T
        torch.testing.assert_close(
            y[:, first : first + 16].double(), expected, rtol=1e-3, atol=1e-2
        )


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_many_rows(fmt, dtype):
    q, w = weight(fmt, 72, 256)
    x = torch.randn(300, 256).to(dtype)
    for each in (w, q.to("cuda")):
        assert bs.explain(x.cuda(), each).kernel in ("cublas", "sm90_gemm")
        y = bs.matmul(x.cuda(), each, out_dtype=torch.float32)
        check_product(y.cpu(), x.double(), exact(q), torch.float32, dtype, roundings=2)


def test_dequantize_of_fragments(placed):
    q, w = weight(placed, 2, 100, 320)
    assert w.layout == fragments(placed)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        there, here = w.dequantize(dtype).cpu(), q.dequantize(dtype)
        assert torch.equal(there, here)
    assert w.to("cpu") == q


def test_a_choice_is_explained():
    _, w = weight(bs.NVFP4, 64, 256)
    told = str(bs.explain(torch.randn(1, 256, device="cuda").bfloat16(), w))
    assert "runs     stream with " in told
    assert "expects  " in told
    assert " us, bound by " in told
    assert "takes x in bfloat16 or float16" in str(
        bs.explain(torch.randn(1, 256, device="cuda"), w)
    )
