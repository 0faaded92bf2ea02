"""The CUDA conversions, launched as on a GPU but run by the emulator.

What this shows without a GPU: addresses, packing, layouts, and what the lanes of a warp tell each
other. The arithmetic has a test of its own, with more formats and harder numbers.
"""

import shutil
from dataclasses import replace

import pytest
import torch

from blockscale.formats import CATALOGUE, MXFP4, MXFP8, NVFP4
from blockscale.kernels import Parts
from blockscale.kernels.cuda import epilogue, rows
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.dequantize import cuda as cuda_dequantize
from blockscale.kernels.dequantize import cuda_fragments
from blockscale.kernels.dequantize import reference as defined_dequantize
from blockscale.kernels.quantize import cuda as cuda_quantize
from blockscale.kernels.quantize import reference as defined_quantize
from blockscale.kernels.repack import cuda as cuda_repack
from blockscale.kernels.tensor_scale import cuda as cuda_tensor_scale
from blockscale.layouts import Layout, canonical
from blockscale.numerics import amax_bits, parse_activation, rules_of, tensor_scale_of
from blockscale.ops.quantize import storage
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import gpu
from bounds import cast_bound, gated_bound, roundings
from hard_inputs import DTYPES, any_parts, hard_rows, row_scales
from native.host_function import on_the_host

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch):
    modules = cuda_quantize, cuda_dequantize, cuda_fragments, cuda_repack, cuda_tensor_scale
    on_the_host(monkeypatch, *modules, epilogue, watched=False)  # compiles in half the time


def problem_of(verb, kind, x, rule="", **more):
    return Problem(
        verb=verb,
        m=x.shape[0] * x.shape[1],
        n=0,
        k=x.shape[2],
        rule=rule,
        x=dtype_name(x.dtype),
        w=str(kind),
        out="uint8" if verb == "quantize" else dtype_name(x.dtype),
        device=replace(gpu("h200"), sms=1),
        **more,
    )


def assert_same(got, expected):
    kind = BITS[expected.element_size()]
    where = (got.view(kind) != expected.view(kind)).nonzero()
    assert not len(where), f"{len(where)} differ, first at {where[0].tolist()}"


def check_quantize(x, format, place, tensor_scale, rule="absmax", importance=None, repeat=1):
    kind, table = Kind(format, place), table_of(format)
    problem = problem_of("quantize", kind, x, rule, weighted=importance is not None)
    weights = [] if importance is None else [importance]
    done = []
    for kernel in (cuda_quantize, defined_quantize):
        codes, scale = (part.fill_(0xA5) for part in storage(kind, tuple(x.shape), x.device))
        config = kernel.configs(problem)[0]
        if kernel is cuda_quantize:
            config = replace(config, repeat=repeat)
        kernel.bind(problem, config)(x, tensor_scale, table, codes, scale, *weights)
        done.append((codes, scale))
    for got, expected in zip(*done, strict=True):
        assert_same(got, expected)


def table_of(format):
    return torch.tensor(format.codebook) if format.is_codebook else None


LARGE = NVFP4.replace(name="block256", block=256)
PLACES = [
    (NVFP4, "bits/rows"),
    (NVFP4, "bits/blocked"),
    (MXFP4, "planes/rows"),
    (CATALOGUE["mxfp6_e2m3"], "bits/rows"),
    (MXFP8, "bits/blocked"),
    (CATALOGUE["kbit2"], "planes/rows"),
    (CATALOGUE["kbit3"], "planes/rows"),
    (CATALOGUE["kbit5"], "planes/rows"),
    (CATALOGUE["kbit5"], "bits/rows"),
    (CATALOGUE["bnb_nf4"], "planes/rows"),
    (NVFP4.replace(name="block8", block=8), "bits/rows"),
]
NAMED = [pytest.param(fmt, place, id=f"{fmt}-{place}") for fmt, place in PLACES]


@pytest.mark.parametrize(("format", "place"), NAMED)
def test_quantize_writes_every_byte(format, place):
    layout, k = Layout(*place.split("/")), 5 * max(format.block, 32)
    last = 2, 130 if layout.scales == "blocked" else 9
    for dtype, (groups, n) in zip(DTYPES, ((1, 1), (3, 7), last), strict=True):
        x = torch.randn(groups, n, k).to(dtype)
        given = torch.rand(groups, n) + 0.01 if format.has_tensor_scale else None
        check_quantize(x, format, layout, given, repeat=1 + groups % 2)


@pytest.mark.parametrize("block", [8, 16])
def test_quantize_takes_rows_of_any_k(block):
    """Not whole units of the most numbers that a lane takes."""
    format = NVFP4.replace(name=f"block{block}", block=block)
    x = hard_rows(format, 5 * block).bfloat16()
    check_quantize(x, format, canonical(format), torch.full(x.shape[:2], 0.37))


def test_quantize_reads_strides():
    place = canonical(NVFP4)
    wide = torch.randn(4, 10, 256).bfloat16()
    odd = torch.randn(2 * 64 * 9 + 1).bfloat16()[1:].view(2, 9, 64)
    for x in (wide[::2, 1::3, 64:192], wide.mT[:, :32].mT, odd, wide[:, :, 3:67]):
        spread = torch.full((1, 1), 0.25).expand(x.shape[:2])  # one tensor scale, without a copy
        check_quantize(x, NVFP4, place, spread)


@pytest.mark.parametrize("format", [NVFP4, MXFP4, LARGE, CATALOGUE["kbit2"]], ids=str)
def test_lanes_search_together(format):
    x = hard_rows(format, 2 * max(format.block, 32)).bfloat16()
    importance = torch.rand(1, x.shape[2]).pow(8)
    importance[0, :40] = 0.0
    given = row_scales(format, x)[0]
    for rule in rules_of(format):
        check_quantize(x, format, canonical(format), given, rule)
    check_quantize(x, format, canonical(format), given, "mse", importance)


def test_quantize_takes_the_importance_of_its_group():
    x, importance = torch.randn(3, 5, 128), torch.rand(3, 128).pow(8)
    check_quantize(x, NVFP4, canonical(NVFP4), torch.ones(3, 5), "mse", importance)


@pytest.mark.parametrize("format", [NVFP4, CATALOGUE["kbit4"]], ids=str)
def test_tensor_scales_are_derived(format):
    """By the kernel that quantises, row by row; and by their own."""
    x = torch.cat([hard_rows(format, 1056), torch.randn(1, 3, 1056)], 1).bfloat16()
    expected = tensor_scale_of(amax_bits(x), format)
    kind = Kind(format, canonical(format))
    problem = problem_of("quantize", kind, x, "absmax", derives=True)
    done = []
    for kernel in (cuda_quantize, defined_quantize):
        codes, scale = (part.fill_(0xA5) for part in storage(kind, tuple(x.shape), x.device))
        launch, scales = (
            kernel.bind(problem, kernel.configs(problem)[0]),
            torch.full_like(expected, -7),
        )
        launch(x, scales, table_of(format), codes, scale)
        assert_same(scales, expected)
        done.append((codes, scale))
    for got, wanted in zip(*done, strict=True):
        assert_same(got, wanted)
    many = torch.cat([x, x.flip(1) * 3]).float()
    of_rows = tensor_scale_of(amax_bits(many), format)
    check_tensor_scale(kind, many, "row", of_rows)
    for ctas in (None, 1, 3):
        of_matrices = tensor_scale_of(amax_bits(many).amax(-1), format)
        check_tensor_scale(kind, many, "matrix", of_matrices, ctas)


def check_tensor_scale(kind, x, rule, expected, ctas=None):
    problem = problem_of("tensor_scale", kind, x, rule, groups=len(x))
    config = cuda_tensor_scale.configs(problem)[0]
    got = torch.full_like(expected, -7.0)
    launch = cuda_tensor_scale.bind(problem, replace(config, ctas=ctas or config.ctas))
    launch(x, got)
    assert_same(got, expected)


@pytest.mark.parametrize(("format", "place"), NAMED)
def test_dequantize_reads_every_byte(format, place):
    layout, k = Layout(*place.split("/")), 5 * max(format.block, 32)
    last = 2, 130 if layout.scales == "blocked" else 9
    for dtype, (groups, n) in zip(DTYPES, ((1, 3), (3, 7), last), strict=True):
        parts = any_parts(format, layout, (groups, n, k))
        x = torch.empty(groups, n, k, dtype=dtype)
        check_dequantize(Kind(format, layout), parts, x)


def check_dequantize(kind, parts, x, by=cuda_dequantize):
    problem = problem_of("dequantize", kind, x)
    done = []
    for kernel in (by, defined_dequantize):
        out = torch.full_like(x, -7.0)
        kernel.bind(problem, kernel.configs(problem)[0], (parts,))(out)
        done.append(out)
    assert_same(*done)


def test_dequantize_reads_panels_of_rows():
    kind = Kind(NVFP4, canonical(NVFP4))
    codes, scale, tensor_scale, table = any_parts(NVFP4, kind.layout, (4, 40, 1024))
    cut = Parts(codes[1::2, 3:33], scale[1::2, 3:33], tensor_scale[1::2, 3:33], table)
    check_dequantize(kind, cut, torch.empty(2, 30, 1024, dtype=torch.bfloat16))


# Every width of a code, every scale, and every dtype once; each is compiled, which takes a second.
DECODED = [(MXFP8, torch.bfloat16), (MXFP4, torch.bfloat16), (NVFP4, torch.float32)]
DECODED += [(CATALOGUE[name], torch.bfloat16) for name in ("kbit2", "kbit3", "kbit4", "kbit5")]
DECODED += [(CATALOGUE["mxfp6_e3m2"], torch.float16)]


@pytest.mark.parametrize(("format", "dtype"), DECODED, ids=str)
def test_dequantize_of_fragments(format, dtype):
    """Every code and scale, with rows and k that are no whole tiles."""
    for shape in ((1, 3, 32), (2, 19, 160)):
        parts = any_parts(format, fragments(format), shape)
        x = torch.empty(shape, dtype=dtype)
        check_dequantize(Kind(format, fragments(format)), parts, x, cuda_fragments)


def test_more_matrices_than_a_grid_counts_are_decoded_in_several_launches(monkeypatch):
    monkeypatch.setattr(rows, "MOST_MATRICES", 2)
    kind, shape = Kind(NVFP4, fragments(NVFP4)), (5, 19, 160)
    parts, wide = any_parts(NVFP4, kind.layout, shape), torch.empty(5, 19, 320)
    for x in (torch.empty(shape), wide[:, :, 160:]):
        check_dequantize(kind, parts, x, cuda_fragments)


def check_epilogue(out, activation=None, biases=(None,), x_scale=None, factor=1.0):
    groups, rows, columns = out.shape
    products = []
    for bias in biases:
        sums, scale = torch.randn(groups, rows, columns), torch.rand(groups) + 0.5
        products.append(epilogue.Sums(sums, scale, bias))
    epilogue.finish(products, out, activation, x_scale, factor)
    expected, size = [], []
    for sums, scale, bias in products:
        y = sums.double() * factor * scale.double()[:, None, None]
        y = y if x_scale is None else y * x_scale.double()[..., None]
        expected.append(y if bias is None else y + bias.double()[:, None])
        size.append(y.abs() + (0 if bias is None else bias.double().abs()[:, None]))
    bounds = [roundings(4, each) for each in size]
    if activation is None:
        bound = bounds[0] + cast_bound(expected[0], out.dtype)
        assert ((out.double() - expected[0]).abs() <= bound).all()
        return
    (g, u), y = expected, activation(*expected)
    if activation.name == "swiglu_oai":
        g, u = g.clamp(max=activation.limit), u.clamp(-activation.limit, activation.limit) + 1
    assert ((out.double() - y).abs() <= gated_bound(g, u, y, *bounds, out.dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_epilogue_scales_adds_and_casts_once(dtype):
    """Four columns at a time, and one by one where their places do not allow it."""
    wide = torch.full((2, 9, 40), torch.nan, dtype=dtype)
    for out in (torch.empty(3, 5, 20, dtype=dtype), wide[:, 2:, 4:24], wide[:, :3, 3:18]):
        check_epilogue(out)
        bias = torch.randn(len(out), 2 * out.shape[2])
        scale = torch.rand(out.shape[:2]) + 0.5
        check_epilogue(out, None, [bias[:, ::2].to(dtype)], scale, 2.0**-8)
    assert wide[:, 0, 18:].isnan().all()  # what is beside stays
    assert wide[:, :, :3].isnan().all()


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_an_epilogue_activates(name):
    out = torch.empty(2, 3, 24, dtype=torch.bfloat16)
    check_epilogue(out, parse_activation(name), [torch.randn(2, 24), None], torch.rand(2, 3))


@pytest.mark.parametrize("format", [fmt for fmt in CATALOGUE.values() if fragments(fmt)], ids=str)
@pytest.mark.parametrize("shape", [(1, 16, 64), (2, 37, 160), (1, 5, 32), (3, 16, 1056)], ids=str)
def test_repack_is_that_of_the_layout(format, shape):
    check_repack(format, shape)


@pytest.mark.parametrize("format", [NVFP4, CATALOGUE["kbit3"]], ids=str)
def test_more_matrices_than_a_grid_counts_are_packed_in_several_launches(format, monkeypatch):
    monkeypatch.setattr(rows, "MOST_MATRICES", 2)
    check_repack(format, (5, 37, 160))


def check_repack(format, shape):
    now, target = canonical(format), fragments(format)
    parts = any_parts(format, now, shape)
    codes = target.pack_codes(now.unpack_codes(parts.codes, format, shape), format)
    scale = target.pack_scale(now.unpack_scale(parts.scale, format, shape), format)
    groups, m, k = shape
    problem = Problem(
        verb="repack",
        m=m,
        n=0,
        k=k,
        groups=groups,
        x=str(Kind(format, now)),
        w=str(Kind(format, target)),
        out="uint8",
        device=gpu("h200"),
    )
    launch = cuda_repack.bind(problem, cuda_repack.configs(problem)[0])
    got = launch(parts.codes, parts.scale)
    assert_same(got[0], codes)
    assert_same(got[1], scale)
