"""Native quantize and dequantize give the bits of the definition, whatever the input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.formats import CATALOGUE, MXFP4, NVFP4
from blockscale.kernels import Parts
from blockscale.kernels.amax import native_amax
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
from blockscale.runtime import device_of, load_native, native
from conftest import CUSTOM
from hard_inputs import DTYPES, EVERY, any_bits, any_parts, columns, hard_rows, row_scales

loaded = load_native()
pytestmark = pytest.mark.skipif(isinstance(loaded, str), reason=f"no native library: {loaded}")

ISAS = [] if isinstance(loaded, str) else native.isas_up_to(loaded.isa)
RULED = [pytest.param(fmt, rule, id=f"{fmt}-{rule}") for fmt in EVERY for rule in rules_of(fmt)]


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
        device=device_of(torch.device("cpu")),
    )
    codes, scale = storage(kind, tuple(x.shape), x.device)
    codes.fill_(0xA5)
    scale.fill_(0xA5)
    config = config or kernel.configs(problem)[0]
    kernel.bind(problem, config)(x, tensor_scale, table, codes, scale)
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
        device=device_of(torch.device("cpu")),
    )
    out = torch.full(shape, -7.0, dtype=dtype)
    kernel.bind(problem, config or kernel.configs(problem)[0], (parts,))(out)
    return out.view(torch.int32 if dtype == torch.float32 else torch.int16)


def check_dequantize(kind, parts, shape, dtype, threads=1):
    expected = dequantize_by(defined_dequantize, None, kind, parts, shape, dtype)
    torch.set_num_threads(threads)
    for isa in ISAS:
        config = NativeConfig(isa)
        got = dequantize_by(native_dequantize, config, kind, parts, shape, dtype)
        where = (got != expected).nonzero()
        assert not len(where), f"{isa}: {len(where)} numbers differ, first {where[0]}"


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("place", ["canonical", "cpu_tiles"])
@pytest.mark.parametrize("format", EVERY, ids=str)
def test_dequantize_gives_the_bits_of_the_definition(format, place, dtype):
    layout = canonical(format) if place == "canonical" else Layout("cpu_tiles", "cpu_tiles")
    shape = (2, 21, columns(format))
    check_dequantize(
        Kind(format, layout), any_parts(format, layout, shape), shape, dtype, threads=2
    )


@pytest.mark.parametrize("place", ["bits/rows", "cpu_tiles/cpu_tiles"])
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
        assert torch.equal(native_amax(view), amax_bits(view))


def test_the_native_kernels_are_chosen_and_refuse_what_they_cannot_do():
    def problem(verb, place):
        kind = Kind(NVFP4, Layout(*place.split("/")))
        return Problem(
            verb=verb, m=4, n=0, k=64, rule="absmax", x="float32", w=str(kind), out="float32",
            device=device_of(torch.device("cpu")),
        )  # fmt: skip

    assert choose(problem("quantize", "bits/rows")).kernel.NAME == "cpu"
    assert choose(problem("dequantize", "cpu_tiles/cpu_tiles")).kernel.NAME == "cpu"
    assert "not bits/blocked" in native_quantize.refuses(problem("quantize", "bits/blocked"))
    assert "not bits/blocked" in native_dequantize.refuses(problem("dequantize", "bits/blocked"))
