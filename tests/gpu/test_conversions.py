"""CUDA quantize, dequantize and tensor scales: the bits of the definition, whatever the input."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.formats import CATALOGUE, MXFP4, NVFP4
from blockscale.kernels import Parts
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.dequantize import cuda as cuda_dequantize
from blockscale.kernels.dequantize import reference as defined_dequantize
from blockscale.kernels.quantize import cuda as cuda_quantize
from blockscale.kernels.quantize import reference as defined_quantize
from blockscale.layouts import Layout, canonical
from blockscale.numerics import amax_bits, rules_of, tensor_scale_of
from blockscale.ops import choose
from blockscale.ops.quantize import derive_tensor_scale, quantize_activations, repack, storage
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import device_of
from blockscale.runtime.cuda import cubin
from conftest import CUSTOM
from hard_inputs import DTYPES, EVERY, any_bits, any_parts, columns, hard_rows, row_scales

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# Every rule on bfloat16; the other dtypes differ in how x is read, which one rule shows.
RULED = [(fmt, rule, torch.bfloat16) for fmt in EVERY for rule in rules_of(fmt)]
RULED += [(fmt, "absmax", dtype) for fmt in EVERY for dtype in (torch.float32, torch.float16)]
RULED += [(NVFP4, rule, torch.float32) for rule in ("mse", "four_over_six")]
DECODED = [(fmt, torch.bfloat16) for fmt in EVERY]
DECODED += [(fmt, dtype) for fmt in CATALOGUE.values() for dtype in (torch.float32, torch.float16)]


def named(cases):
    return [pytest.param(*case, id="-".join(map(str, case))) for case in cases]


def problem_of(verb, kind, m, k, dtype, rule=""):
    return Problem(
        verb=verb,
        m=m,
        n=0,
        k=k,
        rule=rule,
        x=dtype_name(dtype),
        w=str(kind),
        out="uint8" if verb == "quantize" else dtype_name(dtype),
        device=device_of(torch.device("cuda", 0)),
    )


def canonical_kind(format):
    return Kind(format, canonical(format))


@pytest.fixture(scope="module", autouse=True)
def _compiled_at_once():
    """NVRTC compiles side by side what the tests would wait for one by one."""
    if not torch.cuda.is_available():
        return
    builds = []
    for format, rule, dtype in RULED:
        problem = problem_of("quantize", canonical_kind(format), 1, format.block, dtype, rule)
        builds += cuda_quantize.bind(problem, cuda_quantize.configs(problem)[0]).builds
    for format, dtype in DECODED:
        problem = problem_of("dequantize", canonical_kind(format), 1, format.block, dtype)
        builds += cuda_dequantize.bind(problem, cuda_dequantize.configs(problem)[0]).builds
    target = device_of(torch.device("cuda", 0)).arch
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda build: cubin(build, target), dict.fromkeys(builds)))


def assert_same(got, expected, what):
    kind = BITS[expected.element_size()]
    where = (got.cpu().view(kind) != expected.cpu().view(kind)).nonzero()
    assert not len(where), f"{what}: {len(where)} differ, first at {where[0].tolist()}"


def quantize_by(kernel, x, format, rule, tensor_scale, layout=None, importance=None):
    kind = Kind(format, layout or canonical(format))
    table = torch.tensor(format.codebook, device=x.device) if format.is_codebook else None
    problem = problem_of("quantize", kind, x.shape[0] * x.shape[1], x.shape[2], x.dtype, rule)
    weights = []
    if importance is not None:
        problem, weights = replace(problem, weighted=True), [importance.to(x.device)]
    codes, scale = storage(kind, tuple(x.shape), x.device)
    codes.fill_(0xA5)
    scale.fill_(0xA5)
    given = None if tensor_scale is None else tensor_scale.to(x.device)
    launch = kernel.bind(problem, kernel.configs(problem)[0])
    launch(x, given, table, codes, scale, *weights)
    return codes, scale


def check_quantize(x, format, rule, tensor_scale, layout=None, importance=None):
    """The CPU defines; x is on either."""
    given = format, rule, tensor_scale, layout, importance
    expected = quantize_by(defined_quantize, x.cpu(), *given)
    got = quantize_by(cuda_quantize, x.cuda(), *given)
    for name, a, b in zip(("codes", "scale"), got, expected, strict=True):
        assert_same(a, b, name)


@pytest.mark.parametrize(("format", "rule", "dtype"), named(RULED))
def test_quantize_gives_the_bits_of_the_definition(format, rule, dtype):
    x = hard_rows(format, columns(format)).to(dtype)
    for tensor_scale in row_scales(format, x):
        check_quantize(x, format, rule, tensor_scale)


@pytest.mark.parametrize("format", [NVFP4, MXFP4, CATALOGUE["kbit3"]], ids=str)
def test_weighted_errors_choose_as_the_definition_does(format):
    x = hard_rows(format, columns(format)).repeat(2, 1, 1).bfloat16()
    importance = torch.rand(2, x.shape[2]) * torch.randn(2, x.shape[2]).exp()
    importance[1, 3], importance[1, 70:130] = -1.0, 0.0
    for tensor_scale in row_scales(format, x):
        check_quantize(x, format, "mse", tensor_scale, importance=importance)


@pytest.mark.parametrize("format", [NVFP4, MXFP4, *map(CATALOGUE.get, ("mxfp8", "kbit4"))], ids=str)
def test_many_blocks(format):
    """A million numbers, of the magnitudes that weights have, beside the definition on the GPU."""
    x = torch.randn(1, 512, 2048, device="cuda") * torch.randn(512, 1, device="cuda").exp()
    x = x.bfloat16()
    scale = tensor_scale_of(amax_bits(x).amax(-1), format).expand(1, 512)
    given = scale if format.has_tensor_scale else None
    for rule in rules_of(format):
        expected = quantize_by(defined_quantize, x, format, rule, given)
        for got, wanted in zip(
            quantize_by(cuda_quantize, x, format, rule, given), expected, strict=True
        ):
            assert_same(got, wanted, rule)


def test_rows_of_any_number_and_stride():
    for groups, n, k in ((1, 1, 16), (3, 7, 80), (2, 129, 48), (5, 1, 2064)):
        x = torch.randn(groups, n, k)
        check_quantize(x, NVFP4, "absmax", tensor_scale_of(amax_bits(x), NVFP4))
        check_quantize(x, NVFP4, "mse", torch.ones(groups, n))
    wide = torch.randn(4, 10, 256).bfloat16().cuda()
    odd = torch.randn(2 * 64 * 9 + 1).bfloat16().cuda()[1:].view(2, 9, 64)
    for x in (wide[::2, 1::3, 64:192], wide.mT[:, :32].mT, wide[:1].expand(3, 10, 256), odd,
              wide[:, :, 3:67], wide.permute(1, 2, 0).repeat(1, 1, 8)):  # fmt: skip
        check_quantize(x, MXFP4, "absmax", None)
    one = torch.full((1, 1), 0.25).cuda().expand(3, 10)  # one tensor scale, spread without a copy
    check_quantize(wide[:1].expand(3, 10, 256), NVFP4, "absmax", one)


@pytest.mark.parametrize("shape", [(1, 128, 256), (2, 200, 96)], ids=str)
def test_scales_are_born_blocked(shape):
    x = torch.randn(shape)
    for format in (NVFP4, MXFP4):
        given = torch.ones(shape[:2]) if format.has_tensor_scale else None
        check_quantize(x, format, "absmax", given, Layout("bits", "blocked"))
    kbit, place = CATALOGUE["kbit3"], Layout("bits", "blocked")
    check_quantize(x, kbit, "absmax", torch.ones(shape[:2]), place)


# --- dequantize ----------------------------------------------------------------------------------


def dequantize_by(kernel, kind, parts, shape, dtype):
    problem = problem_of("dequantize", kind, shape[0] * shape[1], shape[2], dtype)
    out = torch.full(shape, -7.0, dtype=dtype, device=parts.codes.device)
    kernel.bind(problem, kernel.configs(problem)[0], (parts,))(out)
    return out


def on_gpu(parts):
    return Parts(*(None if part is None else part.cuda() for part in parts))


def check_dequantize(kind, parts, device_parts, shape, dtype):
    expected = dequantize_by(defined_dequantize, kind, parts, shape, dtype)
    assert_same(dequantize_by(cuda_dequantize, kind, device_parts, shape, dtype), expected, kind)


@pytest.mark.parametrize(("format", "dtype"), named(DECODED))
def test_dequantize_gives_the_bits_of_the_definition(format, dtype):
    shape = (2, 21, columns(format))
    parts = any_parts(format, canonical(format), shape)
    check_dequantize(canonical_kind(format), parts, on_gpu(parts), shape, dtype)


def test_dequantize_reads_other_layouts_and_panels_of_rows():
    for format, place in ((NVFP4, "bits/blocked"), (MXFP4, "planes/rows"), (NVFP4, "bits/rows")):
        layout, shape = Layout(*place.split("/")), (2, 200, 160)
        parts = any_parts(format, layout, shape)
        check_dequantize(Kind(format, layout), parts, on_gpu(parts), shape, torch.bfloat16)
    for format in (NVFP4, CATALOGUE["kbit3"]):
        parts = any_parts(format, canonical(format), (4, 40, 1024))
        cuts = [
            Parts(codes[1::2, 3:33], scale[1::2, 3:33], tensor_scale[1::2, 3:33], table)
            for codes, scale, tensor_scale, table in (parts, on_gpu(parts))
        ]
        check_dequantize(canonical_kind(format), *cuts, (2, 30, 1024), torch.bfloat16)


def test_dequantize_many():
    q = bs.quantize(torch.randn(1024, 2048), NVFP4)
    assert_same(q.to("cuda").dequantize(torch.bfloat16), q.dequantize(torch.bfloat16), "values")


# --- tensor scales, and what reaches the kernels -------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_tensor_scales_are_those_of_the_definition(dtype):
    for format in (NVFP4, CATALOGUE["kbit4"], CUSTOM[3]):
        for x in (hard_rows(format, 2080), any_bits(3, 70, 800), torch.randn(2, 300, 4096)):
            amax = amax_bits(x.to(dtype))
            got = derive_tensor_scale(x.to(dtype).cuda(), format, per_row=True)
            assert_same(got, tensor_scale_of(amax, format), "per row")
            got = derive_tensor_scale(x.to(dtype).cuda(), format, per_row=False)
            assert_same(got, tensor_scale_of(amax.amax(-1), format), "per matrix")


@pytest.mark.parametrize("m", [1, 33])
def test_activations_get_tensor_scales_in_the_same_launch(m):
    for format in (NVFP4, CATALOGUE["kbit4"]):
        x = hard_rows(format, 1056)[0].repeat(3, 1)[:m].bfloat16()
        expected = quantize_activations(x, format.spec, format.codebook, None)
        got = quantize_activations(x.cuda(), format.spec, format.codebook, None)
        for a, b in zip(got.tensors, expected.tensors, strict=True):
            assert_same(a, b, format)


@pytest.mark.parametrize("format", [fmt for fmt in EVERY if fragments(fmt)], ids=str)
def test_prepared_bytes_are_those_of_the_layout(format):
    for shape in ((2, 37, 160), (1, 16, 1056)):
        now, target = canonical(format), fragments(format)
        parts = on_gpu(any_parts(format, now, shape))
        codes, scale = repack(parts.codes, parts.scale, format, shape, now, target)
        unpacked = now.unpack_codes(parts.codes.cpu(), format, shape)
        assert_same(codes, target.pack_codes(unpacked, format), "codes")
        assert_same(scale, target.pack_scale(parts.scale.cpu(), format), "scale")


def test_the_cuda_kernels_are_chosen():
    kind = canonical_kind(NVFP4)
    for verb in ("quantize", "dequantize"):
        problem = problem_of(verb, kind, 4, 64, torch.bfloat16, "absmax")
        assert choose(problem).kernel.NAME == "cuda"


def test_a_captured_graph_quantizes_anew():
    x = torch.randn(64, 512, device="cuda").bfloat16()
    bs.quantize(x, MXFP4).dequantize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = bs.quantize(x, MXFP4).dequantize()
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert_same(out, bs.quantize(x.cpu(), MXFP4).dequantize(), "values")
