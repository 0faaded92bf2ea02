"""Products and gradients that leave multiplying to torch's library: what is around it, on the host.

Decoding and the epilogue are the CUDA kernels, run by threads of the host; torch's products, which
only GPUs have in these dtypes, are replaced by exact ones.
"""

import shutil
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.formats import CATALOGUE
from blockscale.kernels import decoded
from blockscale.kernels.cuda import epilogue
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.dequantize import cuda, cuda_fragments
from blockscale.kernels.input_grad import cublas as gradient
from blockscale.kernels.matmul import cublas
from blockscale.ops import example
from blockscale.ops.choose import by_rule
from blockscale.ops.operand import as_groups, as_rows
from blockscale.problem import Problem, dtype_name
from blockscale.runtime import gpu
from native.host_function import on_the_host, product_on_the_host
from products import check, check_gated, exact

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
PREPARED = [bs.NVFP4, bs.KBIT4]


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """What `finish` is called with."""
    on_the_host(monkeypatch, cuda, cuda_fragments, epilogue, watched=False)
    monkeypatch.setattr(decoded, "_product", product_on_the_host)
    found = []

    def spy(*given, **named):
        found.append(given)
        epilogue.finish(*given, **named)

    for module in (cublas, gradient):
        monkeypatch.setattr(module, "finish", spy)
    return found


def weight(format, *shape):
    q = bs.quantize(torch.randn(shape), format)
    place = fragments(format)
    return q, q if place is None else q.pack(place)


def problem_of(verb, q, x, rows, out, groups=1, ragged=False, **more):
    return Problem(
        verb=verb,
        m=rows if ragged else rows // groups,
        n=q.shape[-2],
        k=q.shape[-1],
        groups=groups,
        ragged=ragged,
        x=x if isinstance(x, str) else dtype_name(x),
        w=q.operand.kind,
        out=dtype_name(out),
        device=gpu("h200"),
        **more,
    )


def input_grad(q, grad, out_dtype, group_sizes=None, out=None, **changes):
    groups = q.shape[0] if len(q.shape) == 3 else 1
    ragged = group_sizes is not None
    problem = problem_of("input_grad", q, grad.dtype, len(grad), out_dtype, groups, ragged)
    config = gradient.configs(problem)[0]
    config = replace(config, **changes)
    if out is None:
        out = torch.full((len(grad), problem.k), torch.nan, dtype=out_dtype)
    gradient.bind(problem, config, (as_groups(q.operand),))(grad, (None,), group_sizes, out)
    return out


def check_gradient(y, grad, q, roundings):
    check(y, grad.double(), exact(q).mT, y.dtype, grad.dtype, roundings=roundings)


@pytest.mark.parametrize(
    ("format", "dtype"),
    [
        (bs.NVFP4, torch.bfloat16),
        (bs.KBIT4, torch.bfloat16),
        (bs.KBIT4, torch.float16),
        (bs.MXFP8, torch.float16),
        (bs.BNB_NF4, torch.float32),
    ],
    ids=str,
)
def test_gradients_are_those_of_the_definition(format, dtype):
    q, held = weight(format, 40, 128)
    grad = torch.randn(5, 40).to(dtype)
    for out_dtype in (dtype, torch.float32):
        check_gradient(input_grad(held, grad, out_dtype), grad, q, int(format.is_codebook))


def test_panels_are_summed_in_float32():
    q, held = weight(bs.NVFP4, 300, 64)
    grad = torch.randn(7, 300).bfloat16()
    check_gradient(input_grad(held, grad, torch.bfloat16, rows=128), grad, q, 0)


@pytest.mark.parametrize("matrices", [1, 2, 5])
def test_gradients_of_batches(matrices):
    q, held = weight(bs.NVFP4, 5, 24, 64)
    grad = torch.randn(5 * 3, 24).bfloat16()
    y = input_grad(held, grad, torch.bfloat16, matrices=matrices)
    for i in range(5):
        check_gradient(y[3 * i : 3 * i + 3], grad[3 * i : 3 * i + 3], q[i], 0)


@pytest.mark.parametrize("shape", [(24, 64), (3, 24, 64)], ids=str)
def test_gradients_are_written_wherever_they_are_wanted(shape):
    """Into rows that are apart, or that start at an odd address."""
    held = weight(bs.NVFP4, *shape)[1]
    grad = torch.randn(6, 24).bfloat16()
    expected = input_grad(held, grad, torch.bfloat16)
    apart = torch.full((6, 80), torch.nan, dtype=torch.bfloat16)[:, 3:67]
    odd = torch.full((1 + 6 * 64,), torch.nan, dtype=torch.bfloat16)[1:].view(6, 64)
    for out in (apart, odd):
        assert torch.equal(input_grad(held, grad, torch.bfloat16, out=out), expected)


@pytest.mark.parametrize("format", PREPARED, ids=str)
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients_of_experts(format, out_dtype):
    """Some have no rows, and some rows belong to nobody."""
    q, held = weight(format, 4, 24, 64)
    sizes, rows = torch.tensor([3, 0, 5, 2]), 13
    grad = torch.randn(rows, 24).bfloat16()
    y = input_grad(held, grad, out_dtype, sizes)
    for i, part in ((0, slice(0, 3)), (2, slice(3, 8)), (3, slice(8, 10))):
        check_gradient(y[part], grad[part], q[i], 1)
    assert not y[10:].any()
    clipped = input_grad(held, grad[:6], out_dtype, torch.tensor([3, -2, 9, 1]))
    assert torch.equal(clipped, input_grad(held, grad[:6], out_dtype, torch.tensor([3, 0, 3, 0])))


def test_only_gradients_whose_group_sizes_stay_on_the_device_can_be_captured():
    def asked(out=torch.bfloat16, n=24, device="h200", **facts):
        q = weight(bs.NVFP4, 4, n, 64)[1]
        problem = problem_of("input_grad", q, torch.bfloat16, 8, out, 4, **facts)
        problem = replace(problem, device=gpu(device))
        return gradient.bind(problem, gradient.configs(problem)[0]).is_capturable

    assert asked()
    assert asked(ragged=True)
    assert not asked(ragged=True, out=torch.float32)
    assert not asked(ragged=True, n=20)  # rows of 40 bytes
    assert not asked(ragged=True, device="rtx4090")


def matmul(weights, x, out_dtype, biases=(None,), x_label=None, **facts):
    rows = x.shape[0]
    problem = problem_of("matmul", weights[0], x_label or x.dtype, rows, out_dtype, **facts)
    out = torch.full((rows, problem.n), torch.nan, dtype=out_dtype)
    parts = tuple(as_groups(each.operand) for each in weights)
    given = x if x_label is None else as_rows(x.operand)
    config = cublas.configs(problem)[0]
    biases = tuple(None if bias is None else bias[None] for bias in biases)
    cublas.bind(problem, replace(config, rows=128), parts)(given, biases, None, out)
    return out


@pytest.mark.parametrize("format", PREPARED, ids=str)
def test_products_in_panels(format, launched):
    q, held = weight(format, 200, 64)
    x, bias = torch.randn(9, 64).bfloat16(), torch.randn(200)
    for out_dtype in (torch.bfloat16, torch.float32):
        y = matmul([held], x, out_dtype, (bias,), bias=True)
        check(y, x.double(), exact(q), out_dtype, x.dtype, bias, roundings=int(format.is_codebook))
    assert len(launched) == 2 * 2  # one pass over each panel


def test_torch_writes_what_needs_nothing_more(launched):
    """Into float32, or where the product fills the GPU."""
    (q, held), x = weight(bs.KBIT4, 64, 64), torch.randn(9, 64).bfloat16()
    y = matmul([held], x, torch.float32)
    assert not launched
    check(y, x.double(), exact(q), torch.float32, x.dtype)
    matmul([held], x, torch.bfloat16)
    assert len(launched) == 1
    large = problem_of("matmul", held, torch.bfloat16, 4096, torch.bfloat16)
    assert decoded.torch_writes(large, 4096 * 4096)
    assert not decoded.torch_writes(large, 512 * 4096)


@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])
def test_gated_products(activation, launched):
    (gate, g), (up, u) = weight(bs.NVFP4, 40, 64), weight(bs.NVFP4, 40, 64)
    x, bias = torch.randn(5, 64).bfloat16() / 8, torch.randn(40)
    facts = {"gated": True, "activation": activation, "bias": True}
    y = matmul([g, u], x, torch.bfloat16, (bias, None), **facts)
    check_gated(y, x, gate, up, activation, bias, roundings=0)
    assert len(launched) == 1


@pytest.mark.parametrize("x_format", [bs.NVFP4, bs.MXFP8], ids=str)
def test_quantised_x_is_multiplied_in_bfloat16(x_format):
    """Which holds every value of it: the result is that of exact numbers."""
    (q, held), x = weight(bs.NVFP4, 40, 128), bs.quantize(torch.randn(5, 128), x_format)
    if x.tensor_scale is not None:
        x = bs.quantize(torch.randn(5, 128), x_format, tensor_scale=torch.rand(5) + 0.5)
    label = x.operand.kind
    problem = problem_of("matmul", held, label, 5, torch.float32)
    assert decoded.multiplied_dtype(problem) == torch.bfloat16
    assert "float32" not in str(cublas.configs(problem)[0])
    y = matmul([held], x, torch.float32, x_label=label)
    check(y, exact(x), exact(q), torch.float32, torch.bfloat16, roundings=0)


def test_x_that_bfloat16_would_round_is_multiplied_in_float32():
    kind = bs.quantize(torch.randn(5, 128), bs.KBIT4).operand.kind
    problem = problem_of("matmul", weight(bs.NVFP4, 40, 128)[1], kind, 5, torch.float32)
    assert decoded.multiplied_dtype(problem) == torch.float32
    assert "since bfloat16 would round it" in str(cublas.configs(problem)[0])


def test_float16_has_room_for_lifted_weights():
    """A table under scales up to 448, times 256: the largest weight would be infinite."""
    wide = bs.KBIT4.replace(name="wide", scale="ue4m3", tensor_scale="amax")
    q = bs.quantize(torch.randn(40, 128), wide)
    assert q.scale.max() > 0x70  # 128 and more
    grad = torch.randn(5, 40).half()
    problem = problem_of("input_grad", q, grad.dtype, 5, torch.float32)
    assert decoded.multiplied_dtype(problem) == torch.float32
    check_gradient(input_grad(q, grad, torch.float32), grad, q, 1)
    narrow = replace(problem, w=weight(bs.KBIT4, 40, 128)[1].operand.kind)
    assert decoded.multiplied_dtype(narrow) == torch.float16


@pytest.mark.parametrize("name", ["a100", "rtx4090", "h200", "b200"])
def test_gpus_do_not_leave_gradients_to_the_reference(name):
    for format in CATALOGUE.values():
        chosen = by_rule(example("input_grad", format, gpu(name), m=512)).kernel
        assert chosen.NAME in ("sm90_gemm" if name == "h200" else "cublas", "cublas")
