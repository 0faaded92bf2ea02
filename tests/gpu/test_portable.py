"""The Triton kernel on a GPU against the definition: every format, verb, dtype and odd size.

It is bound directly, whatever kernel the problem would be given to.
"""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.formats import fits_bfloat16
from blockscale.kernels.matmul import portable
from blockscale.ops.operand import as_groups, as_rows
from blockscale.runtime import device_of, triton_refusal
from products import check, check_gated, exact, scaled

MISSING = "no CUDA device"
if torch.cuda.is_available():
    MISSING = triton_refusal(device_of(torch.device("cuda", 0))) or ""
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(autouse=True)
def _without_proofs(monkeypatch):
    """These tests are the proof: none is made before them, with kernels of its own to compile."""
    monkeypatch.setenv("BLOCKSCALE_PROVE", "0")


DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture
def taken(fmt):
    """A format that the kernel reads."""
    problem = problem_of(
        torch.empty(1, 512, dtype=torch.bfloat16), bs.quantize(torch.ones(1, 512), fmt)
    )
    refusal = portable.refuses(problem)
    if refusal is not None:
        pytest.skip(refusal)
    return fmt


def weight(fmt, *shape):
    return bs.quantize(torch.randn(*shape) * torch.exp2(torch.randint(-3, 4, (shape[-2], 1))), fmt)


def problem_of(x, *weights, bias=False, **options):
    on_gpu = [each.to("cuda") for each in weights]
    return replace(bs.explain(x.to("cuda"), *on_gpu, **options).problem, bias=bias)


def run(x, *weights, config=None, biases=None, sizes=None, **options):
    """Into memory that holds NaN: what is not written is seen."""
    if sizes is not None:
        options["group_sizes"] = sizes.cuda()
    problem = problem_of(x, *weights, bias=biases is not None, **options)
    groups = problem.groups
    held = tuple(as_groups(each.to("cuda").operand) for each in weights)
    config = config or portable.configs(problem)[0]
    out = torch.full((problem.rows, problem.n), torch.nan, device="cuda", dtype=problem.out_dtype)
    rows = as_rows(x.to("cuda").operand) if isinstance(x, bs.QTensor) else x.cuda().flatten(0, -2)
    given = [
        None if b is None else b.cuda().reshape(groups, -1) for b in biases or [None] * len(held)
    ]
    launch = portable.bind(problem, config, held)
    launch(rows, tuple(given), None if sizes is None else sizes.cuda(), out)
    again = torch.full_like(out, torch.nan)
    launch(rows, tuple(given), None if sizes is None else sizes.cuda(), again)
    assert torch.equal(out.view(torch.uint8), again.view(torch.uint8)), (
        "a second run has other bits"
    )
    return out.cpu().view(*x.shape[:-1], problem.n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_formats(taken, dtype):
    q, x, bias = weight(taken, 100, 512), torch.randn(5, 512).to(dtype), torch.randn(100)
    y = run(x, q, biases=[bias], out_dtype=torch.float32)
    check(y, x.double(), exact(q), torch.float32, dtype, bias)


@pytest.mark.parametrize("m", [1, 33, 64, 200])
@pytest.mark.parametrize("some", [bs.NVFP4, bs.KBIT4], ids=str)
def test_rows(some, m):
    q, x = weight(some, 100, 512), torch.randn(m, 512).bfloat16()
    check(run(x, q), x.double(), exact(q), x.dtype, x.dtype)


def test_one_hot_rows_read_single_weights(taken):
    q, at = weight(taken, 33, 256), torch.randperm(256)[:16]
    x = torch.nn.functional.one_hot(at, 256).bfloat16()
    y, expected = run(x, q, out_dtype=torch.float32), exact(q)[:, at].T
    if taken.is_codebook or taken.scale.bits == 32:
        check(y, x.double(), exact(q), torch.float32, x.dtype)
    else:
        assert torch.equal(y, expected.float())


def test_every_code_and_scale(taken):
    if taken.scale.bits == 32:
        pytest.skip("scales of random bytes are any float32")
    place, shape = weight(taken, 512, taken.block).layout, (512, taken.block)
    codes = torch.randint(0, 256, place.code_storage_shape(taken, shape), dtype=torch.uint8)
    scale = torch.randint(0, 256, place.scale_storage_shape(taken, shape), dtype=torch.uint8)
    if taken.scale.name == "e8m0":  # weights that float32 has room for, and NaN
        scale = torch.where(scale > 230, 255, scale)
    q = bs.QTensor.from_storage(taken, codes, scale)
    x = (torch.randn(16, taken.block) * 2.0**-64).bfloat16()
    y, expected = run(x, q, out_dtype=torch.float32), x.double() @ scaled(q).T
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())
    sound = expected.isfinite().all(0)
    mass = x.double().abs() @ scaled(q)[sound].abs().T
    error = (y[:, sound].double() - expected[:, sound]).abs()
    rounded = 2.0**-8 if taken.is_codebook else 0
    assert (error <= (rounded + 2.0**-18) * mass + 2.0**-126).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m", [3, 96])
def test_every_config(dtype, m):
    q, x = weight(bs.NVFP4, 300, 1056), torch.randn(m, 1056).to(dtype)
    for config in portable.configs(problem_of(x, q)):
        y = run(x, q, config=replace(config, splits=3), out_dtype=torch.float32)
        check(y, x.double(), exact(q), torch.float32, dtype)


@pytest.mark.parametrize(("n", "k"), [(1, 32), (17, 96), (130, 2080)])
def test_odd_sizes(n, k):
    for some in (bs.NVFP4, bs.MXFP6_E2M3, bs.KBIT5):
        q, x = weight(some, n, k), torch.randn(7, k).bfloat16()
        check(run(x, q), x.double(), exact(q), x.dtype, x.dtype)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gated(activation):
    gate, up = weight(bs.KBIT4, 56, 1024), weight(bs.KBIT4, 56, 1024)
    x, biases = torch.randn(4, 1024).bfloat16() / 8, (torch.randn(56), None)
    y = run(x, gate, up, biases=biases, activation=activation)
    check_gated(y, x, gate, up, activation, *biases)


@pytest.mark.parametrize(
    "sizes", [[3, 0, 1, 20, 2], [0] * 5, [0, 150, 0, 0, 7], [30, -4, 999, 1, 1]]
)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_groups(sizes, index):
    """Rows of nobody become zero; negative sizes are none, and what is too much is cut off."""
    q, m = weight(bs.NVFP4, 5, 72, 320), 160
    x, bias = torch.randn(m, 320).bfloat16(), torch.randn(5, 72)
    y = run(x, q, biases=[bias], sizes=torch.tensor(sizes, dtype=index), out_dtype=torch.float32)
    start = 0
    for i, size in enumerate(sizes):
        rows = slice(start, min(start + max(size, 0), m))
        check(y[rows], x[rows].double(), exact(q[i]), torch.float32, x.dtype, bias[i])
        start = rows.stop
    assert (y[start:] == 0).all()


def test_many_experts_and_gating():
    gate, up = weight(bs.MXFP4, 300, 32, 64), weight(bs.MXFP4, 300, 32, 64)
    sizes = torch.bincount(torch.randint(300, (64,)), minlength=300)
    x, start = torch.randn(64, 64).bfloat16(), 0
    y = run(x, gate, up, sizes=sizes, activation="silu")
    for i, size in enumerate(sizes.tolist()):
        if size:
            rows = slice(start, start + size)
            check_gated(y[rows], x[rows], gate[i], up[i], "silu")
        start += size


def test_batches():
    q, x = weight(bs.MXFP8, 3, 48, 512), torch.randn(3, 20, 512).bfloat16()
    y = run(x, q)
    for i in range(3):
        check(y[i], x[i].double(), exact(q)[i], x.dtype, x.dtype)


def test_both_quantised(taken):
    if not fits_bfloat16(taken):
        pytest.skip("bfloat16 does not hold its values")
    q, x = weight(taken, 48, 512), bs.quantize(torch.randn(20, 512), taken)
    check(run(x, q, out_dtype=torch.float32), exact(x), exact(q), torch.float32, torch.float32)


@pytest.mark.parametrize("m", [1, 150])
def test_mixed_formats(m):
    q, x = weight(bs.MXFP4, 48, 512), bs.quantize(torch.randn(m, 512), bs.MXFP8)
    check(run(x, q, out_dtype=torch.float32), exact(x), exact(q), torch.float32, torch.float32)


def test_blocked_scales():
    q, x = weight(bs.NVFP4, 2, 200, 320), torch.randn(2, 9, 320).bfloat16()
    assert torch.equal(run(x, q.pack("bits/blocked")), run(x, q))


def test_strided_and_unaligned_tensors():
    q = weight(bs.NVFP4, 64, 256)
    wide = torch.randn(6, 600).bfloat16()
    for x in (wide[:, 3:259], wide[:, 1:513:2], wide[1:4, 24:280]):
        assert torch.equal(run(x, q), run(x.contiguous(), q))
    rows = weight(bs.NVFP4, 80, 272)  # rows of 136 bytes
    x = torch.randn(6, 272).bfloat16()
    assert torch.equal(run(x, rows[3:70]), run(x, rows)[:, 3:70])


def test_graphs():
    q, x = weight(bs.NVFP4, 4096, 2048), torch.randn(4, 2048, device="cuda").bfloat16()
    problem = problem_of(x, q)
    launch = portable.bind(
        problem, portable.configs(problem)[0], (as_groups(q.to("cuda").operand),)
    )
    assert launch.is_capturable
    out = torch.empty(4, 4096, device="cuda", dtype=torch.bfloat16)
    launch(x, (None,), None, out)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
        launch(x, (None,), None, out)
    x.copy_(torch.randn(4, 2048))
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    check(out.cpu(), x.cpu().double(), exact(q), torch.bfloat16, torch.bfloat16)


def test_weights_that_nobody_prepared_are_its_own():
    q, x = weight(bs.NVFP4, 512, 1024), torch.randn(4, 1024).bfloat16()
    told = bs.explain(x.cuda(), q.to("cuda"))
    assert told.kernel == "portable", str(told)
    check(bs.matmul(x.cuda(), q.to("cuda")).cpu(), x.double(), exact(q), x.dtype, x.dtype)
    assert bs.explain(x.cuda(), q.prepare("cuda")).kernel == "stream"
