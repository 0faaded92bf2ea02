"""Products of many rows by torch's library, on a GPU. Skipped where there is none."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.formats import fits_bfloat16
from blockscale.kernels.matmul import cublas
from blockscale.ops.operand import as_groups, as_rows
from products import check, check_gated, exact

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SOME = [bs.NVFP4, bs.MXFP4, bs.KBIT4, bs.BNB_NF4]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def weight(fmt, *shape):
    q = bs.quantize(torch.randn(*shape) * torch.exp2(torch.randint(-3, 4, (shape[-2], 1))), fmt)
    return q, q.prepare("cuda")


def roundings(q):
    return int(not fits_bfloat16(q.format))


def panels(x, weights, out_dtype, biases, rows=128, **facts):
    """By the kernel itself, in panels of so many rows."""
    given = x if isinstance(x, bs.QTensor) else x.cuda()
    asked = bs.explain(given, weights[0], out_dtype=out_dtype).problem
    problem = replace(asked, bias=any(each is not None for each in biases), **facts)
    config = replace(cublas.configs(problem)[0], rows=rows)
    out = torch.full((problem.rows, problem.n), torch.nan, dtype=out_dtype, device="cuda")
    held = tuple(None if bias is None else bias.cuda()[None] for bias in biases)
    parts = tuple(as_groups(each.operand) for each in weights)
    given = as_rows(given.operand) if isinstance(x, bs.QTensor) else given
    cublas.bind(problem, config, parts)(given, held, None, out)
    return out.cpu()


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [300, 301])  # four outputs at a time, and one by one
def test_panels_with_a_bias(some, dtype, n):
    q, w = weight(some, n, 256)
    x = torch.randn(33, 256).to(dtype)
    for bias in (None, torch.randn(n), torch.randn(n).bfloat16(), torch.randn(n).half()):
        for out_dtype in {dtype, torch.float32}:
            y = panels(x, [w], out_dtype, (bias,))
            check(y, x.double(), exact(q), out_dtype, dtype, bias, roundings=roundings(q))


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gated_panels(some, activation):
    (gate, g), (up, u) = weight(some, 200, 256), weight(some, 200, 256)
    x, bias = torch.randn(40, 256).bfloat16() / 8, torch.randn(200)
    y = panels(x, [g, u], torch.bfloat16, (bias, None), gated=True, activation=activation)
    check_gated(y, x, gate, up, activation, bias, roundings=roundings(gate))


@pytest.mark.parametrize("some", SOME, ids=str)
def test_a_product_that_fills_the_gpu(some):
    """Written by torch where the tensor scale is in the weights, or there is none."""
    q, w = weight(some, 4096, 64)
    x = torch.randn(2048, 64).bfloat16()
    y = panels(x, [w], torch.bfloat16, (None,), rows=4096)
    check(y, x.double(), exact(q), torch.bfloat16, x.dtype, roundings=roundings(q))


@pytest.mark.parametrize("some", SOME, ids=str)
@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP4, bs.MXFP8, bs.KBIT4], ids=str)
def test_quantised_x(some, x_format):
    q, w = weight(some, 200, 256)
    x = bs.quantize(torch.randn(300, 256), x_format)
    exactly = fits_bfloat16(x_format)
    for out_dtype in (torch.bfloat16, torch.float32):
        y = panels(x.to("cuda"), [w], out_dtype, (None,))
        dtype = torch.bfloat16 if exactly else torch.float32
        check(y, exact(x), exact(q), out_dtype, dtype, roundings=roundings(q))


def test_rows_quantised_on_the_fly():
    """One tensor scale to a row."""
    q, w = weight(bs.NVFP4, 200, 256)
    x = torch.randn(300, 256).bfloat16()
    y = bs.matmul(x.cuda(), w, x_format=bs.NVFP4, out_dtype=torch.float32).cpu()
    rounded = torch.stack([exact(bs.quantize(row[None], bs.NVFP4))[0] for row in x])
    check(y, rounded, exact(q), torch.float32, torch.bfloat16, roundings=0)


def test_a_captured_graph_multiplies_anew():
    _, w = weight(bs.NVFP4, 256, 256)
    x = torch.randn(300, 256, device="cuda").bfloat16()
    bias = torch.randn(256, device="cuda")
    bs.linear(x, w, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bs.linear(x, w, bias)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, bs.linear(x, w, bias))
