"""Gradients with respect to x on a GPU against the definition. Skipped where there is none."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.formats import fits_bfloat16
from blockscale.kernels.input_grad import cublas, sm90_gemm
from blockscale.numerics import input_gradient
from blockscale.ops import input_grad
from blockscale.ops.choose import choose
from blockscale.ops.operand import as_groups
from blockscale.problem import Problem, dtype_name
from blockscale.runtime import device_of
from products import check, exact, scaled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SOME = [bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.MXFP8, bs.BNB_NF4]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def weight(fmt, *shape):
    q = bs.quantize(torch.randn(*shape) * torch.exp2(torch.randint(-3, 4, (shape[-2], 1))), fmt)
    return q, q.prepare("cuda")


def gradient(w, grad, dtype, sizes=None):
    sizes = None if sizes is None else sizes.cuda()
    y = input_grad(grad.cuda(), list(w.tensors), w.operand.kind, list(w.shape), sizes, dtype)
    return y.cpu()


def check_gradient(y, grad, q, roundings=None):
    roundings = int(not fits_bfloat16(q.format)) if roundings is None else roundings
    expected = input_gradient(grad, scaled(q), q.tensor_scale)
    assert torch.allclose(expected, grad.double() @ exact(q))  # two definitions are one
    check(y, grad.double(), exact(q).mT, y.dtype, grad.dtype, roundings=roundings)


def problem_of(w, rows, dtype, out, groups=1, ragged=False):
    return Problem(
        verb="input_grad",
        m=rows if ragged else rows // groups,
        n=w.shape[-2],
        k=w.shape[-1],
        groups=groups,
        ragged=ragged,
        x=dtype_name(dtype),
        w=w.operand.kind,
        out=dtype_name(out),
        device=device_of(torch.device("cuda", 0)),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_format(fmt, dtype):
    """As files hold the weights, and as they are prepared; rows that are no whole tiles."""
    q, w = weight(fmt, 72, 512)
    grad = torch.randn(13, 72).to(dtype)
    for held in (w, q.to("cuda")):
        problem = problem_of(held, 13, dtype, dtype)
        by_wgmma = sm90_gemm.refuses(problem) is None
        assert choose(problem).kernel is (sm90_gemm if by_wgmma else cublas)
        for out in {dtype, torch.float32}:
            check_gradient(gradient(held, grad, out), grad, q)


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("m", [1, 3, 200])
@pytest.mark.parametrize("n", [1, 17, 136])
def test_odd_sizes(some, m, n):
    q, w = weight(some, n, 320)
    grad = torch.randn(m, n).bfloat16()
    check_gradient(gradient(w, grad, torch.bfloat16), grad, q)


def test_one_hot_gradients_read_single_rows():
    """No sum, so nothing is rounded but the tensor scale's product."""
    q, w = weight(bs.NVFP4, 96, 256)
    at = torch.randperm(96)[:7]
    y = gradient(w, torch.nn.functional.one_hot(at, 96).bfloat16(), torch.float32)
    assert torch.equal(y, scaled(q)[at].float() * q.tensor_scale)


@pytest.mark.parametrize("some", SOME, ids=str)
def test_a_product_that_torch_writes_itself(some):
    """Large enough to fill the GPU."""
    q, w = weight(some, 64, 4096)
    grad = torch.randn(2048, 64).bfloat16()
    check_gradient(gradient(w, grad, torch.bfloat16), grad, q)


WGMMA = [bs.NVFP4, bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.KBIT2, bs.KBIT3, bs.KBIT4, bs.KBIT5]


@pytest.mark.parametrize("some", WGMMA, ids=str)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32], ids=str)
def test_every_config_by_wgmma(some, out):
    """Rows, columns and sums that are no whole tiles, into memory that holds NaN."""
    q, w = weight(some, 456, 832)
    grad = torch.randn(300, 456).bfloat16()
    problem = problem_of(w, 300, torch.bfloat16, out)
    assert sm90_gemm.refuses(problem) is None
    for config in sm90_gemm.configs(problem)[:: 1 if some is bs.NVFP4 else 6]:
        dx = torch.full((300, 832), torch.nan, dtype=out, device="cuda")
        launch = sm90_gemm.bind(problem, config, (as_groups(w.operand),))
        launch(grad.cuda(), (None,), None, dx)
        check_gradient(dx.cpu(), grad, q)
        again = torch.full_like(dx, torch.nan)
        launch(grad.cuda(), (None,), None, again)
        assert torch.equal(dx, again), config


@pytest.mark.parametrize("some", [bs.NVFP4, bs.KBIT4], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_panels(some, dtype):
    q, w = weight(some, 500, 256)
    grad = torch.randn(33, 500).to(dtype)
    problem = problem_of(w, 33, dtype, dtype)
    config = replace(cublas.configs(problem)[0], rows=128)
    out = torch.full((33, 256), torch.nan, dtype=dtype, device="cuda")
    cublas.bind(problem, config, (as_groups(w.operand),))(grad.cuda(), (None,), None, out)
    check_gradient(out.cpu(), grad, q)


@pytest.mark.parametrize("matrices", [1, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches(matrices, dtype):
    q, w = weight(bs.NVFP4, 5, 48, 192)
    grad = torch.randn(5 * 9, 48).to(dtype)
    problem = problem_of(w, 45, dtype, dtype, groups=5)
    config = replace(cublas.configs(problem)[0], matrices=matrices)
    out = torch.full((45, 192), torch.nan, dtype=dtype, device="cuda")
    cublas.bind(problem, config, (as_groups(w.operand),))(grad.cuda(), (None,), None, out)
    for i in range(5):
        part = slice(9 * i, 9 * i + 9)
        check_gradient(out[part].cpu(), grad[part], q[i])


SIZES = [[3, 0, 150, 7, 0], [0, 0, 0, 0, 0], [40, 40, 40, 40, 40], [0, 0, 0, 0, 1]]


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("n", [72, 76])  # rows of 16 bytes, and rows that the host must cut
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32], ids=str)
def test_groups(some, sizes, n, out):
    """Experts without rows, and four rows that belong to nobody."""
    q, w = weight(some, 5, n, 192)
    sizes = torch.tensor(sizes)
    grad = torch.randn(int(sizes.sum()) + 4, n).bfloat16()
    y, start = gradient(w, grad, out, sizes), 0
    for i, size in enumerate(sizes.tolist()):
        part = slice(start, start + size)
        check_gradient(y[part], grad[part], q[i], roundings=1)
        start += size
    assert not y[start:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_groups_in_other_dtypes(dtype):
    q, w = weight(bs.NVFP4, 3, 40, 128)
    grad = torch.randn(12, 40).to(dtype)
    y = gradient(w, grad, dtype, torch.tensor([5, 0, 7], dtype=torch.int32))
    check_gradient(y[:5], grad[:5], q[0])
    check_gradient(y[5:], grad[5:], q[2])


def test_sizes_beyond_the_rows_are_clipped():
    _, w = weight(bs.NVFP4, 3, 16, 64)
    grad = torch.randn(5, 16).bfloat16()
    for out in (torch.bfloat16, torch.float32):
        raw, clipped = (
            gradient(w, grad, out, torch.tensor(sizes)) for sizes in ([4, -2, 9], [4, 0, 1])
        )
        assert torch.equal(raw, clipped)


def test_gradients_that_are_expanded_or_strided():
    """As `sum().backward()` gives them, and as views of something wider."""
    q, w = weight(bs.NVFP4, 2, 64, 128)
    sizes, wide = torch.tensor([4, 5]), torch.randn(9, 131, device="cuda").bfloat16()
    one = torch.ones((), dtype=torch.bfloat16, device="cuda")
    for held in (one.expand(9, 64), wide[:, 3:67]):
        grad, y = held.cpu(), gradient(w, held, torch.bfloat16, sizes)
        check_gradient(y[:4], grad[:4], q[0], roundings=1)
        check_gradient(y[4:], grad[4:], q[1], roundings=1)
        check_gradient(gradient(w[0], held, torch.bfloat16), grad, q[0])


@pytest.mark.parametrize("grouped", [False, True])
def test_a_captured_graph_multiplies_anew(grouped):
    _, w = weight(bs.NVFP4, *((4,) if grouped else ()), 64, 256)
    grad = torch.randn(20, 64, device="cuda").bfloat16()
    sizes = torch.tensor([3, 0, 9, 5], device="cuda") if grouped else None
    facts = list(w.tensors), w.operand.kind, list(w.shape), sizes, torch.bfloat16
    problem = problem_of(w, 20, torch.bfloat16, torch.bfloat16, 4 if grouped else 1, grouped)
    if not cublas.bind(problem, cublas.configs(problem)[0]).is_capturable:
        pytest.skip("torch has no grouped product for this GPU")
    input_grad(grad, *facts)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = input_grad(grad, *facts)
    grad.copy_(torch.randn_like(grad))
    if grouped:
        sizes.copy_(torch.tensor([0, 8, 1, 6]))
    graph.replay()
    assert torch.equal(out, input_grad(grad, *facts))


@pytest.mark.filterwarnings("error:Attempting to run cuBLAS")
def test_a_layer_trains():
    """Through the whole of autograd: x, a gate, and the experts."""
    q, w = weight(bs.NVFP4, 64, 128)
    x = torch.randn(300, 128, device="cuda").bfloat16().requires_grad_()
    above = torch.randn(300, 64).bfloat16()
    bs.matmul(x, w).backward(above.cuda())
    check_gradient(x.grad.cpu(), above, q)
    up = weight(bs.NVFP4, 64, 128)[1]
    for grouped in (False, True):
        x.grad = None
        if grouped:
            several = [bs.quantize(torch.randn(2, 64, 128), bs.NVFP4).prepare("cuda") for _ in "gu"]
            y = bs.grouped_gated_matmul(x, *several, torch.tensor([100, 200], device="cuda"))
        else:
            y = bs.gated_matmul(x, w, up)
        y.float().square().mean().backward()
        assert x.grad.dtype == torch.bfloat16
        assert x.grad.isfinite().all()
        assert x.grad.any()
