"""Native quantize and dequantize give the bits of the definition, whatever the input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.formats import CATALOGUE, INT8, KBIT2, MXFP4, NVFP4, Codebook
from blockscale.kernels import Parts, row_amax
from blockscale.kernels.dequantize import cpu as native_dequantize
from blockscale.kernels.dequantize import reference as defined_dequantize
from blockscale.kernels.native import NativeConfig
from blockscale.kernels.quantize import cpu as native_quantize
from blockscale.kernels.quantize import reference as defined_quantize
from blockscale.layouts import Layout, canonical
from blockscale.numerics import amax_bits, rules_of, tensor_scale_of
from blockscale.ops import choose
from blockscale.ops.quantize import storage
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime import load_native, native
from conftest import CUSTOM

loaded = load_native()
pytestmark = pytest.mark.skipif(isinstance(loaded, str), reason=f"no native library: {loaded}")

ISAS = [] if isinstance(loaded, str) else native.ISAS[: native.ISAS.index(loaded.isa) + 1]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def codebook(bits, values):
    return KBIT2.replace(name=f"codebook{bits}", element=Codebook(bits=bits, values=tuple(values)))


EXTRA = [
    INT8,
    NVFP4.replace(name="block8", block=8),
    NVFP4.replace(name="block2048", block=2048),
    MXFP4.replace(name="e1m0", element="e1m0"),
    MXFP4.replace(name="e5m0", element="e5m0"),
    MXFP4.replace(name="e1m6", element="e1m6"),
    codebook(6, torch.linspace(-1, 1, 64).pow(5).tolist()),  # crowded around zero
    codebook(7, [-1.0] * 60 + [1e-45] * 4 + [0.5 + i * 2.0**-24 for i in range(64)]),
    codebook(8, torch.linspace(-1, 1, 256).pow(3).tolist()),
]
EVERY = [*CATALOGUE.values(), *CUSTOM, *EXTRA]
RULED = [pytest.param(fmt, rule, id=f"{fmt}-{rule}") for fmt in EVERY for rule in rules_of(fmt)]


def any_bits(*shape):
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32).view(torch.float32)


def ties(format, k):
    """Numbers at and beside the points where rounding changes, in blocks whose scale is one."""
    middles = torch.tensor(format.element.boundaries, dtype=torch.float64).float()
    up, down = (middles.nextafter(torch.tensor(end)) for end in (math.inf, -math.inf))
    near = torch.cat([middles, up, down])
    x = near[torch.randint(len(near), (k,))] * (torch.randint(2, (k,)) * 2 - 1)
    return x.masked_fill(torch.arange(k) % format.block == 0, format.element.max)


def hard_rows(format, k):  # float32 [1, rows, k]
    """One row for each kind of trouble."""
    normal = torch.randn(k)
    spoilt = normal.clone()
    spoilt[torch.randperm(k)[: k // 16]] = torch.tensor([math.inf, -math.inf, math.nan]).repeat(k)[
        : k // 16
    ]
    last = normal.clone()
    last[-1] = math.nan
    rows = [
        normal,
        normal * torch.randn(k).mul(6).exp(),  # heavy tails
        normal * 1e-41,  # subnormal
        normal * 1e-38 * torch.randn(k).exp(),  # across the border
        normal.sign() * 2.0**-149,
        normal * 1e38,
        torch.full((k,), torch.finfo(torch.float32).max),
        any_bits(k),
        spoilt,
        last,
        torch.zeros(k),
        -torch.zeros(k),
        torch.where(normal > 0, 0.0, -0.0),
        normal * (torch.arange(k) // format.block % 2),  # every other block is zero
        (normal * 4).round() / 4,
        ties(format, k),
    ]
    return torch.stack(rows)[None]


def row_scales(format, x):
    """The derived ones, one, and the extremes."""
    if not format.has_tensor_scale:
        return [None]
    derived = tensor_scale_of(amax_bits(x), format)
    extremes = torch.tensor([2.0**-149, 1e-40, 2.0**-126, 1e-20, 1e20, 2.0**127])
    mixed = extremes[torch.randint(len(extremes), derived.shape)]
    return [derived, torch.ones_like(derived), mixed]


def columns(format):
    """A few blocks, in whole groups of every packing."""
    return 5 * max(format.block, 32) if format.block < 2048 else 2 * format.block


def quantize_by(kernel, config, x, format, rule, tensor_scale, layout=None):
    kind = Kind(format, layout or canonical(format))
    table = torch.tensor(format.codebook) if format.is_codebook else None
    problem = Problem(
        verb="quantize",
        m=x.shape[0] * x.shape[1],
        n=0,
        k=x.shape[2],
        rule=rule,
        x=dtype_name(x.dtype),
        w=str(kind),
        out="uint8",
        target="cpu",
    )
    codes, scale = storage(kind, tuple(x.shape), x.device)
    codes.fill_(0xA5)
    scale.fill_(0xA5)
    config = config or kernel.configs(problem)[0]
    kernel.launch(problem, config, x, tensor_scale, table, codes, scale)
    return codes, scale


def check_quantize(x, format, rule, tensor_scale, threads=1, layout=None):
    expected = quantize_by(defined_quantize, None, x, format, rule, tensor_scale, layout)
    torch.set_num_threads(threads)
    for isa in ISAS:
        config = NativeConfig(isa)
        got = quantize_by(native_quantize, config, x, format, rule, tensor_scale, layout)
        for name, a, b in zip(("codes", "scale"), got, expected, strict=True):
            where = (a != b).nonzero()
            assert not len(where), f"{isa} {name}: {len(where)} bytes differ, first {where[0]}"


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize(("format", "rule"), RULED)
def test_quantize_gives_the_bits_of_the_definition(format, rule, dtype):
    x = hard_rows(format, columns(format)).to(dtype)
    for tensor_scale in row_scales(format, x):
        check_quantize(x, format, rule, tensor_scale)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RULED), st.integers(0, 2**32 - 1), st.floats(-140, 120))
def test_quantize_is_exact_at_every_magnitude(case, seed, power):
    format, rule = case.values
    torch.manual_seed(seed)
    x = torch.randn(1, 3, columns(format)) * torch.tensor(power, dtype=torch.float64).exp2()
    x = x.float()
    for tensor_scale in row_scales(format, x):
        check_quantize(x, format, rule, tensor_scale)


@pytest.mark.parametrize("rule", ["absmax", "mse"])
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("format", [NVFP4, MXFP4, CATALOGUE["kbit3"]], ids=str)
def test_threads_and_segments_do_not_show(format, threads, rule):
    x = torch.randn(3, 13, 2 * 1024 + 32)  # a row is cut in three, unevenly
    scales = tensor_scale_of(amax_bits(x), format) if format.has_tensor_scale else None
    check_quantize(x, format, rule, scales, threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_strided_inputs_are_read_in_place(dtype):
    wide = torch.randn(4, 10, 256).to(dtype)
    for x in (
        wide[::2, 1::3, 64:192],
        wide.mT[:, :200:5, :].mT[:, :, :32],
        wide[:1].expand(3, 10, 256),
    ):
        check_quantize(x, MXFP4, "absmax", None)
    check_quantize(wide.permute(1, 2, 0).repeat(1, 1, 8)[:, ::3], MXFP4, "absmax", None)
    check_quantize(torch.randn(2, 64, 9).to(dtype).mT, MXFP4, "absmax", None)
    one = torch.full((1, 1), 0.25).expand(2, 9)  # one tensor scale, spread without a copy
    check_quantize(torch.randn(2, 64, 9).to(dtype).mT, NVFP4, "absmax", one)


@pytest.mark.parametrize("format", [NVFP4, CATALOGUE["kbit5"], CATALOGUE["mxfp6_e3m2"]], ids=str)
@pytest.mark.parametrize("codes", ["bits", "planes"])
def test_both_packings_are_written(format, codes):
    x = hard_rows(format, 160)
    check_quantize(x, format, "absmax", row_scales(format, x)[0], layout=Layout(codes, "rows"))


def test_infinity_saturates_under_every_divisor():
    """Where scale * tensor_scale is infinite too, and where it is zero."""
    x = torch.randn(1, 4, 64)
    x[0, :2, 5], x[0, :2, 9] = math.inf, -math.inf
    tensor_scale = torch.tensor([[2.0**127, 2.0**-149, 2.0**127, 2.0**-149]])
    for format in (CATALOGUE["kbit4"], CUSTOM[3]):
        for rule in rules_of(format):
            check_quantize(x, format, rule, tensor_scale)


def test_flushed_subnormals_change_nothing(flush_denormal):
    for format in (NVFP4, CATALOGUE["kbit4"], CATALOGUE["bnb_nf4"]):
        torch.set_flush_denormal(False)  # for as long as the input is made
        x = hard_rows(format, columns(format))
        scales = row_scales(format, x)
        torch.set_flush_denormal(True)
        for tensor_scale in scales:
            check_quantize(x, format, rules_of(format)[-1], tensor_scale, threads=2)


# --- dequantize ----------------------------------------------------------------------------------


def dequantize_by(kernel, config, kind, parts, shape, dtype):
    problem = Problem(
        verb="dequantize",
        m=shape[0] * shape[1],
        n=0,
        k=shape[2],
        x=dtype_name(dtype),
        w=str(kind),
        out=dtype_name(dtype),
        target="cpu",
    )
    out = torch.full(shape, -7.0, dtype=dtype)
    kernel.launch(problem, config or kernel.configs(problem)[0], parts, out)
    return out.view(torch.int32 if dtype == torch.float32 else torch.int16)


def check_dequantize(kind, parts, shape, dtype, threads=1):
    expected = dequantize_by(defined_dequantize, None, kind, parts, shape, dtype)
    torch.set_num_threads(threads)
    for isa in ISAS:
        config = NativeConfig(isa)
        got = dequantize_by(native_dequantize, config, kind, parts, shape, dtype)
        where = (got != expected).nonzero()
        assert not len(where), f"{isa}: {len(where)} numbers differ, first {where[0]}"


def any_parts(format, layout, shape):
    """Every code and every scale, NaN and Inf among them."""
    groups, n, k = shape
    codes = torch.randint(1 << format.element.bits, shape, dtype=torch.uint8)
    scale_bytes = k // format.block * format.scale.bits // 8
    scale = torch.randint(256, (groups, n, scale_bytes), dtype=torch.uint8)
    tensor_scale = None
    if format.has_tensor_scale:
        tensor_scale = torch.randn(groups, n).mul(30).exp() * 1e-3
        tensor_scale[0, :3] = torch.tensor([1.0, 2.0**-149, 2.0**127])
    table = torch.tensor(format.codebook) if format.is_codebook else None
    return Parts(
        layout.pack_codes(codes, format), layout.pack_scale(scale, format), tensor_scale, table
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("place", ["canonical", "lanes"])
@pytest.mark.parametrize("format", EVERY, ids=str)
def test_dequantize_gives_the_bits_of_the_definition(format, place, dtype):
    layout = canonical(format) if place == "canonical" else Layout("lanes", "lanes")
    shape = (2, 21, columns(format))
    check_dequantize(
        Kind(format, layout), any_parts(format, layout, shape), shape, dtype, threads=2
    )


@pytest.mark.parametrize("place", ["bits/rows", "lanes/lanes"])
def test_a_last_chunk_may_be_half_full(place):
    layout, shape = Layout(*place.split("/")), (1, 5, 16 * 67)
    for dtype in DTYPES:
        check_dequantize(Kind(NVFP4, layout), any_parts(NVFP4, layout, shape), shape, dtype)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_dequantize_reads_slices_in_place(threads):
    for format in (NVFP4, CATALOGUE["kbit3"]):
        codes, scale, tensor_scale, table = any_parts(format, canonical(format), (4, 40, 1024))
        cut = Parts(codes[1::2, 3:33], scale[1::2, 3:33], tensor_scale[1::2, 3:33], table)
        kind = Kind(format, canonical(format))
        check_dequantize(kind, cut, (2, 30, 1024), torch.bfloat16, threads)


def test_flushed_subnormals_are_dequantized(flush_denormal):
    for format in (NVFP4, CATALOGUE["mxfp4"], CATALOGUE["bnb_nf4"]):
        torch.set_flush_denormal(False)
        layout, shape = canonical(format), (1, 64, 1024)
        parts = any_parts(format, layout, shape)
        torch.set_flush_denormal(True)
        for dtype in DTYPES:
            check_dequantize(Kind(format, layout), parts, shape, dtype, threads=2)


# --- around them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_row_amax_is_that_of_the_definition(dtype):
    x = torch.cat([hard_rows(NVFP4, 2080)[0], any_bits(50, 2080)]).to(dtype)
    for view in (x, x.T, x[::3, 5:900], x[:1].expand(7, -1)):
        assert torch.equal(row_amax(view), amax_bits(view))


def test_the_native_kernels_are_chosen_and_refuse_what_they_cannot_do():
    def problem(verb, place):
        kind = Kind(NVFP4, Layout(*place.split("/")))
        return Problem(
            verb=verb, m=4, n=0, k=64, rule="absmax", x="float32", w=str(kind), out="float32",
            target="cpu",
        )  # fmt: skip

    assert choose(problem("quantize", "bits/rows")).kernel.NAME == "cpu"
    assert choose(problem("dequantize", "lanes/lanes")).kernel.NAME == "cpu"
    assert "not bits/blocked" in native_quantize.refuses(problem("quantize", "bits/blocked"))
    assert "not bits/blocked" in native_dequantize.refuses(problem("dequantize", "bits/blocked"))
