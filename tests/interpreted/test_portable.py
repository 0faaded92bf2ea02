"""The Triton kernel, statement by statement on the CPU, against the definition.

Triton interprets where TRITON_INTERPRET is set before it is imported, so these tests have a process
of their own: tests/kernels/test_portable.py starts it. The interpreter is wrong in bfloat16 and in
products of NVFP4 by `tl.dot_scaled`: float32, float16 and the MX formats stand for them here.
"""

import os
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.matmul import portable
from blockscale.layouts import canonical
from blockscale.ops.operand import as_groups, as_rows
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import gpu
from products import check, check_gated, exact, scaled

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="tests/kernels/test_portable.py runs it with TRITON_INTERPRET=1",
)


def problem_of(x, w, **facts):
    coded = isinstance(x, bs.QTensor)
    rows, groups = x.shape[:-1], w.shape[0] if len(w.shape) == 3 else 1
    every = {
        "verb": "matmul",
        "m": rows.numel() // groups if not coded else rows[0],
        "n": w.shape[-2],
        "k": w.shape[-1],
        "groups": groups,
        "x": str(Kind(x.format, x.layout)) if coded else dtype_name(x.dtype),
        "w": str(Kind(w.format, w.layout)),
        "out": "float32",
        "device": gpu("sm_80"),
        **facts,
    }
    return Problem(**every)


def run(problem, x, weights, biases=(None,), sizes=None, **config):
    """Into memory that holds NaN: what is not written is seen."""
    out = torch.full((problem.rows, problem.n), torch.nan)
    chosen = replace(portable.configs(problem)[0], **config)
    rows = as_rows(x.operand) if isinstance(x, bs.QTensor) else x.flatten(0, -2)
    parts = tuple(as_groups(each.operand) for each in weights)
    portable.bind(problem, chosen, parts)(rows, biases, sizes, out)
    return out


def test_every_code_and_scale(fmt):
    """One block to a row: its NaN and infinities stay its own. Floats are exact: x is one-hot."""
    k = max(fmt.block, 32)
    place, shape = canonical(fmt), (64, k)
    codes = torch.randint(0, 256, place.code_storage_shape(fmt, shape), dtype=torch.uint8)
    scale = torch.randint(0, 256, place.scale_storage_shape(fmt, shape), dtype=torch.uint8)
    if fmt.scale.name == "e8m0":  # weights that float32 has room for, and NaN
        scale = torch.where(scale > 230, 255, scale)
    if fmt.scale.bits == 32:
        scale = torch.randn(64, k // fmt.block).view(torch.uint8)
    q = bs.QTensor.from_storage(fmt, codes, scale)
    columns = torch.randperm(fmt.block)[:16]
    x = torch.nn.functional.one_hot(columns, k).float()
    problem = problem_of(x, q)
    if portable.refuses(problem):
        assert fmt.element.bits == 7
        return
    y, expected = run(problem, x, [q], splits=1), (x.double() @ scaled(q).T)
    whole = expected.isfinite()
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y[whole], expected.float()[whole])


@pytest.mark.parametrize("some", [bs.NVFP4, bs.MXFP8_E5M2, bs.MXFP6_E3M2, bs.KBIT5], ids=str)
def test_float16_keeps_the_bound(some):
    """Sums of blocks are scaled where float16 has no room for weights times scales."""
    w = bs.quantize(torch.randn(40, 96) * torch.exp2(torch.arange(40) * 1.0)[:, None], some)
    x, bias = torch.randn(3, 96).half(), torch.randn(1, 40)
    problem = problem_of(x, w, bias=True)
    y = run(problem, x, [w], (bias,), splits=2)
    check(y, x.double(), exact(w), torch.float32, x.dtype, bias[0])


@pytest.mark.parametrize("sizes", [[3, 0, 1, 9, 2], [0] * 5, [9, -4, 999, 1, 1]], ids=str)
def test_group_sizes_are_read_on_the_device(sizes):
    """Rows of nobody become zero; negative sizes are none, and what is too much is cut off."""
    q, x, m = bs.quantize(torch.randn(5, 24, 64), bs.MXFP4), torch.randn(20, 64), 20
    problem = problem_of(x, q, m=m, ragged=True)
    bias = torch.randn(5, 24)
    y = run(problem, x, [q], (bias,), torch.tensor(sizes))
    start = 0
    for i, size in enumerate(sizes):
        rows = slice(start, min(start + max(size, 0), m))
        check(y[rows], x[rows].double(), exact(q[i]), torch.float32, torch.float32, bias[i])
        start = rows.stop
    assert (y[start:] == 0).all()


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gated(activation):
    gate, up = (bs.quantize(torch.randn(40, 64), bs.NVFP4) for _ in range(2))
    x, bias = torch.randn(3, 64) / 8, torch.randn(1, 40)
    problem = problem_of(x, gate, gated=True, activation=activation, bias=True)
    for splits in (1, 2):
        y = run(problem, x, [gate, up], (bias, None), splits=splits, tile_k=32)
        check_gated(y, x, gate, up, activation, bias[0])


def test_batches_and_blocked_scales():
    q, x = (
        bs.quantize(torch.randn(2, 140, 96), bs.NVFP4).pack("bits/blocked"),
        torch.randn(2, 3, 96),
    )
    y = run(problem_of(x, q), x, [q]).view(2, 3, 140)
    for i in range(2):
        check(y[i], x[i].double(), exact(q[i]), torch.float32, torch.float32)


PAIRS = [(bs.NVFP4, bs.NVFP4), (bs.MXFP4, bs.MXFP8), (bs.MXFP8_E5M2, bs.MXFP4)]


@pytest.mark.parametrize(("w_format", "x_format"), PAIRS, ids=str)
@pytest.mark.parametrize("native", [False, True], ids=["decoded", "native"])
def test_both_quantised(w_format, x_format, native):
    if native and w_format == bs.NVFP4:
        pytest.skip("Triton's interpreter takes scales of NVFP4 for powers of two")
    w, x = bs.quantize(torch.randn(40, 320), w_format), bs.quantize(torch.randn(5, 320), x_format)
    problem = problem_of(x, w, device=gpu("sm_100"))
    y = run(problem, x, [w], native=native, multiplied="float32")
    check(y, exact(x), exact(w), torch.float32, torch.float32)
