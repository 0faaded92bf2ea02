"""Products on a GPU against the definition. Skipped where there is none."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul import stream
from blockscale.ops.operand import as_groups
from gpu.streamed import SOME, check, random_bytes, runs, weight
from kinds import one_of_each_kind
from products import check as check_product
from products import exact, scaled
from ways import Way

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

TWICE_ROUNDED = (1 + 2.0**-8) ** 2 - 1  # to bfloat16


@pytest.fixture
def placed(fmt):
    """A format that the streaming kernel knows."""
    if fragments(fmt) is None:
        pytest.skip(f"{fmt.spec} is left to other kernels")
    return fmt


@pytest.mark.parametrize("m", [1, 2, 3, 8, 13, 24, 32, 50, 64, 70, 128])
def test_rows(placed, m):
    q, w = weight(placed, 100, 320)
    x, bias = torch.randn(m, 320).bfloat16(), torch.randn(100)
    with Way("stream").only():
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


@pytest.mark.parametrize("some", SOME, ids=str)
def test_more_rows_than_are_multiplied_at_a_time(some):
    q, w = weight(some, 200, 4096)
    x = torch.randn(200, 4096).bfloat16()
    problem, y = bs.explain(x.cuda(), w).problem, torch.empty(200, 200, device="cuda").bfloat16()
    launch = stream.bind(problem, stream.configs(problem)[0], (as_groups(w.operand),))
    launch(x.cuda(), (None,), None, y)
    check(q, y.cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP8, bs.MXFP4], ids=str)
@pytest.mark.parametrize("m", [4, 20])
def test_both_quantised(x_format, m):
    q, w = weight(bs.NVFP4, 48, 192)
    x = torch.randn(m, 192).bfloat16()
    runs("stream", x.cuda(), w, x_format=x_format)
    y = bs.matmul(x.cuda(), w, x_format=x_format, out_dtype=torch.float32).cpu()
    rounded = torch.stack([exact(bs.quantize(row[None], x_format))[0] for row in x])
    check(q, y, rounded, exact(q), torch.float32, torch.bfloat16)


@pytest.mark.parametrize("k", [16, 48, 64, 112, 2880])
def test_any_k(k):
    q, w = weight(bs.NVFP4, 37, k)
    for m in (1, 9, 33):
        x = torch.randn(m, k).bfloat16()
        check(q, bs.matmul(x.cuda(), w).cpu(), x.double(), exact(q), torch.bfloat16, x.dtype)


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
