"""The arithmetic of the CUDA conversions, compiled for the host, has the bits of the definition."""

import ctypes
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch

from blockscale.formats import CATALOGUE, KBIT4, NVFP4
from blockscale.kernels.cuda.formats import TENSOR_SCALES, carry_mantissa, cuda_format, cuda_search
from blockscale.numerics import (
    decode_scale,
    dequantize_rows,
    quantize_rows,
    rules_of,
    tensor_scale_of,
)
from blockscale.numerics.elements import decode
from hard_inputs import DTYPES, EVERY, any_bits, codebook, columns, hard_rows, row_scales
from native.host_library import host_library

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
SOURCE = Path(__file__).parent / "cuda_conversions.cpp"
CROWDED = codebook(4, torch.linspace(-1, 1, 16).pow(5).tolist())  # two midpoints in an interval
# Larger blocks take long to compile.
FORMATS = [*(each for each in EVERY if each.block <= 1024), CROWDED]
SEARCHED = [each for each in FORMATS if "mse" in rules_of(each)]
SCALED = [each for each in FORMATS if each.has_tensor_scale]
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


OFF = (-2, 0, 2)  # units in the last place that a GPU's reciprocals may be from the nearest


def conversions(format, off=0):
    compiled = _conversions(format)
    compiled.library.set_reciprocal_off(off)
    return compiled


@cache
def _conversions(format):
    return Conversions(format)


class Conversions:
    """The compiled functions for one format."""

    def __init__(self, format):
        rules = [f"RULE({cuda_search(r)},{carry_mantissa(format, r)})" for r in rules_of(format)]
        definitions = {
            "FORMAT": cuda_format(format),
            "RULES": ",".join(rules),
            "TENSOR_SCALE": TENSOR_SCALES.get(format.tensor_scale, "NONE"),
        }
        defined = [f"-D{name}={value}" for name, value in definitions.items()]
        self.library = host_library(
            "-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas",
            *defined, SOURCE,
        )  # fmt: skip
        self.format = format
        self.codebook = torch.tensor(format.codebook) if format.is_codebook else None

    def call(self, name, *arguments):
        given = [
            ctypes.c_void_p(each.data_ptr() if isinstance(each, torch.Tensor) else each)
            if each is None or isinstance(each, torch.Tensor)
            else ctypes.c_int64(each)
            for each in arguments
        ]
        getattr(self.library, name)(*given)

    def quantize(self, x, rule, tensor_scale, importance):  # [rows, k], [rows] or None, [k] or None
        rows, blocks = len(x), x.shape[1] // self.format.block
        each = torch.ones(rows) if tensor_scale is None else tensor_scale
        each = each.repeat_interleave(blocks)
        weights = None if importance is None else importance.expand(x.shape).contiguous()
        codes = torch.empty(x.shape, dtype=torch.uint8)
        scale = torch.empty(rows, blocks, dtype=torch.int32)
        facts = rules_of(self.format).index(rule), DTYPES.index(x.dtype), rows * blocks
        read = x.contiguous(), each, self.codebook, weights
        self.call("quantize_blocks", *facts, *read, codes, scale)
        stored = scale.view(torch.uint8).reshape(rows, blocks, 4)
        return codes, stored[..., : self.format.scale.bits // 8].flatten(1)

    def check_quantize(self, x, tensor_scale, rules, importance=None, offs=(None,)):
        """With reciprocals of all `offs`; None leaves them as they are."""
        given = tensor_scale, self.codebook, importance
        for rule in rules:
            expected = quantize_rows(x, self.format, rule, *given)
            for off in offs:
                if off is not None:
                    self.library.set_reciprocal_off(off)
                got = self.quantize(x, rule, tensor_scale, importance)
                for name, a, b in zip(("codes", "scale"), got, expected, strict=True):
                    where = (a != b).nonzero()
                    assert not len(where), (
                        f"{rule} {name}, off {off}: {len(where)} differ, first {where[0]}"
                    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_quantize_has_the_bits_of_the_definition(format, dtype):
    x = hard_rows(format, columns(format)).to(dtype)
    for tensor_scale in row_scales(format, x):
        given = None if tensor_scale is None else tensor_scale[0]
        conversions(format).check_quantize(x[0], given, rules_of(format))


@pytest.mark.parametrize("off", OFF[::2])
@pytest.mark.parametrize("format", [NVFP4, KBIT4], ids=str)
def test_codes_do_not_depend_on_the_last_bits_of_reciprocals(format, off):
    x = hard_rows(format, 40 * format.block)
    for dtype in DTYPES:
        short = x.to(dtype)
        for tensor_scale in row_scales(format, short):
            given = short[0], tensor_scale[0], rules_of(format)
            conversions(format, off).check_quantize(*given)


def in_blocks(amax, x, block):
    """Numbers x [rows, count], none larger than amax [rows], in blocks that begin with it."""
    short = -x.shape[1] % (block - 1)
    x = torch.cat([x, x[:, :short]], 1).unflatten(1, (-1, block - 1))
    return torch.cat([amax[:, None, None].expand(-1, x.shape[1], 1), x], 2).flatten(1)


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_short_number_under_every_scale(dtype, off):
    """NVFP4: from the largest of a block down to those that are always zero, of either sign."""
    every = torch.arange(1 << 15, dtype=torch.int16).view(dtype)
    every = every[(every >= 2.0**-10) & (every < 1)].float()  # all mantissas, several exponents
    codes = torch.arange(1, 127, 1 if dtype == torch.bfloat16 else 9, dtype=torch.uint8)
    scale = decode_scale(codes, NVFP4.scale)
    for tensor_scale in (1.0, 0.0371, 3.3):
        amax = (6 * tensor_scale * scale).to(dtype).float()
        binade = torch.frexp(amax)[1].float().exp2()
        x = every * binade[:, None]
        x = torch.where(x <= amax[:, None], x, 0.0)
        x *= torch.randint(2, x.shape) * 2 - 1
        x = in_blocks(amax, x, NVFP4.block).to(dtype)
        given = torch.full((len(x),), tensor_scale)
        conversions(NVFP4, off).check_quantize(x, given, ["absmax", "four_over_six"])


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_short_numbers_beside_a_boundary_are_on_their_side(dtype, off):
    """NVFP4, whose boundaries have three bits: divisors D such that D B is near a multiple of 2^s,
    for which a product with a reciprocal may be on the other side."""
    precision = 8 if dtype == torch.bfloat16 else 11
    s, bound = 26 - precision, torch.randint(4, 8, (1 << 14,))
    near = torch.randint(-60, 61, bound.shape)
    multiple = (torch.randint(1 << 23, 1 << 24, bound.shape) * bound >> s) << s
    divisor = (multiple + near) // bound
    usable = ((multiple + near) % bound == 0) & (divisor >> 23 == 1)
    exponent = torch.randint(-7, 8, bound.shape)
    divisors = torch.ldexp(divisor.double(), exponent - 23).float()[usable]
    bounds = torch.tensor(NVFP4.element.boundaries, dtype=torch.float64)
    x = (bounds * divisors[:, None].double()).to(dtype)
    x = torch.stack([x, *((x.view(torch.int16) + off).view(dtype) for off in (-1, 1))], 2).flatten(
        1
    )
    x = in_blocks((6 * divisors).to(dtype), x, NVFP4.block)
    conversions(NVFP4, off).check_quantize(x, divisors, ["absmax"])


def test_quick_quotients_are_correctly_rounded():
    library = conversions(NVFP4).library
    assert library.wrong_quotients() == 0
    assert library.wrong_quotients_by_largest() == 0


@pytest.mark.parametrize("format", SEARCHED, ids=str)
def test_weighted_errors_choose_as_the_definition_does(format):
    k = columns(format)
    x = hard_rows(format, k)
    ordinary = torch.rand(k) * torch.randn(k).exp()
    by_block = torch.arange(k) // format.block
    odd = torch.where(by_block % 5 == 1, -1.0, ordinary).masked_fill(by_block % 5 == 2, torch.inf)
    sparse = ordinary * (torch.rand(k) < 0.1)
    for importance in (ordinary, odd, sparse, ordinary * 1e30, ordinary * 1e-30, any_bits(k)):
        for tensor_scale in row_scales(format, x)[:1]:
            given = None if tensor_scale is None else tensor_scale[0]
            conversions(format).check_quantize(x[0], given, ["mse"], importance)


def searched_rows(format):  # float32 [rows, k]
    """Blocks whose best scale may be any of the candidates, or one of two that are as good."""
    block, blocks = format.block, max(1280 // format.block, 2)
    codes = torch.arange(1 << format.element.bits, dtype=torch.uint8)
    table = torch.tensor(format.codebook) if format.is_codebook else None
    values = decode(codes, format.element, table).float().nan_to_num(0.0, 0.0, 0.0)
    scale = torch.randint(50, 70, (3, blocks, 1)).div(16).exp2() * 2.0**-4
    on_grids = []
    for most in (1.0, 0.75, 0.6, 0.5, 0.3):  # the larger ones of a coarser grid are missing
        few = values[values.abs() <= values.abs().max() * most]
        few = few if len(few) else values
        on_grids.append(few[torch.randint(len(few), (3, blocks, block))] * scale)
    normal = torch.randn(3, blocks, block)
    outlier = normal * 0.03
    outlier[..., 3] = 1.0
    constant = normal.sign() * scale
    halves = (normal * 2).round() / 2
    every = torch.stack([*on_grids, normal, outlier, constant, halves, normal.square()])
    beside = (every.view(torch.int32) + torch.randint(-2, 3, every.shape, dtype=torch.int32)).view(
        torch.float32
    )
    return torch.cat([every, torch.where(every == 0, every, beside)]).flatten(0, 1).flatten(1)


@pytest.mark.parametrize("format", SEARCHED, ids=str)
def test_searches_choose_among_all_candidates(format):
    x = searched_rows(format)
    importance = torch.rand(x.shape[1]).pow(8)
    given = torch.full((len(x),), 0.0371) if format.has_tensor_scale else None
    offs = OFF if format in (NVFP4, KBIT4) else (0,)
    for dtype in DTYPES[:2]:
        for weights in (None, importance):
            conversions(format).check_quantize(x.to(dtype), given, ["mse"], weights, offs)


def test_searches_end_a_binade_away():
    """Above, where the values of a coarser grid are not among those of a finer one; below, where
    many small numbers gain more than the largest one loses, and would gain more further down."""
    signs = torch.randint(2, (2, 2048)) * 2.0 - 1
    fine = codebook(3, [-1.0, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 1.0])
    above = torch.tensor([0.5, 0.3, 0.1])[torch.randint(3, signs.shape)]
    coarse = codebook(2, [-1.0, -0.5, 0.5, 1.0]).replace(name="coarse", block=256)
    below = torch.tensor([0.25, 0.234375])[:, None].expand(signs.shape).clone()
    for format, x, amax, best in ((fine, above, 0.5, 1.0), (coarse, below, 1.0, 0.5)):
        x[:, :: format.block] = amax
        expected = quantize_rows(x, format, "mse", torch.ones(2), torch.tensor(format.codebook))
        assert decode_scale(expected.scale, format.scale).eq(best).all()
        conversions(format).check_quantize(x * signs, torch.ones(2), ["mse"])


def test_candidates_share_lookups():
    wanted = {NVFP4: 3, KBIT4: 4, CATALOGUE["kbit2"]: 4, CATALOGUE["kbit3"]: 4}
    wanted |= {CATALOGUE["kbit5"]: 2, CATALOGUE["mxfp4"]: 1, CROWDED: 0}
    for format, scales in wanted.items():
        compiled = conversions(format)
        table = ctypes.c_void_p(None if compiled.codebook is None else compiled.codebook.data_ptr())
        assert compiled.library.scales_of_a_lookup(table) == scales, format


@pytest.mark.parametrize("name", ["kbit2", "kbit3", "kbit4", "kbit5"])
def test_codes_are_found_by_a_lookup(name):
    """Under the scales of a search as well, a third of which are too small for the largest number.
    A warp quantises 32 blocks together, and one that takes more holds up all."""
    compiled, rows, k = conversions(CATALOGUE[name]), 64, 1024
    compiled.library.blocks_that_were_not_near()
    compiled.check_quantize(
        torch.randn(rows, k).bfloat16().float(), torch.ones(rows), ["absmax", "mse"]
    )
    assert compiled.library.blocks_that_were_not_near() < rows * k / 32 / 100


def beside_boundaries(format, divisors, k):
    """Quotients at and a few float32 beside the boundaries; each block's amax asks for scale 1."""
    bounds = torch.tensor(format.element.boundaries, dtype=torch.float64)
    chosen = bounds[torch.randint(len(bounds), (len(divisors), k))]
    x = (chosen * divisors[:, None].double()).float()
    x = (x.view(torch.int32) + torch.randint(-3, 4, x.shape, dtype=torch.int32)).view(torch.float32)
    largest = (format.element.max * divisors.double()).float()[:, None]
    return torch.where(torch.arange(k) % format.block == 0, largest, x.clamp(-largest, largest))


@pytest.mark.parametrize("format", SCALED, ids=str)
def test_quotients_beside_a_boundary_are_on_their_side(format):
    """Mantissas near multiples of a power of two too, where a product with a reciprocal errs."""
    rows = 600
    mantissa = torch.randint(1 << 23, (rows,), dtype=torch.int32)
    step = 1 << (23 - getattr(format.element, "mantissa", 1))
    for first, reach in ((0, 16), (1, 140)):  # of each three
        off = torch.randint(-reach, reach + 1, (rows,), dtype=torch.int32)
        near = (mantissa // step * step + off).clamp(0, (1 << 23) - 1)
        mantissa[first::3] = near[first::3]
    exponent = torch.randint(127 - 40, 127 + 40, (rows,), dtype=torch.int32)
    divisors = (exponent << 23 | mantissa).view(torch.float32)
    x = beside_boundaries(format, divisors, 2 * max(format.block, 32))
    offs = (0,) if format.is_codebook else OFF
    conversions(format).check_quantize(x, divisors, rules_of(format), offs=offs)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_dequantize_has_the_bits_of_the_definition(format):
    compiled, pairs = conversions(format), 1 << 14
    codes = torch.randint(1 << format.element.bits, (pairs, 2), dtype=torch.uint8)
    scale = any_bits(pairs) if format.scale.bits == 32 else torch.arange(pairs) % 256
    scale = scale.view(torch.int32) if format.scale.bits == 32 else scale.to(torch.int32)
    each = any_bits(pairs).abs().nan_to_num(1.0, 1.0).clamp(2.0**-149)
    if not format.has_tensor_scale:
        each = torch.ones(pairs)
    out = [torch.empty(pairs, 2, dtype=dtype) for dtype in DTYPES]
    compiled.call("dequantize_pairs", codes, scale, each, compiled.codebook, pairs, *out)
    narrow = format.replace(block=8)  # a pair, repeated, is a block
    stored = scale.view(torch.uint8).reshape(pairs, 4)[:, : format.scale.bits // 8]
    tensor_scale = each if format.has_tensor_scale else None
    for got in out:
        expected = dequantize_rows(
            codes.repeat(1, 4), stored, narrow, tensor_scale, compiled.codebook, got.dtype
        )
        assert torch.equal(got.view(BITS[got.dtype]), expected[:, :2].view(BITS[got.dtype]))


@pytest.mark.parametrize("format", SCALED, ids=str)
def test_tensor_scales_have_the_bits_of_the_definition(format):
    largest = torch.cat(
        [any_bits(1 << 14).abs(), (torch.arange(-149, 128)).double().exp2().float()]
    )
    edges = torch.tensor([0.0, 16 * format.scale.smallest_normal, format.scale.max])
    edges = torch.cat([edges, edges * format.element.max])
    beside = [edges.nextafter(torch.tensor(to)) for to in (0.0, torch.inf)]
    amax = torch.cat([largest[largest.isfinite()], edges, *beside])
    out = torch.empty_like(amax)
    conversions(format).call("tensor_scales", amax, len(amax), out)
    expected = tensor_scale_of(amax.view(torch.int32), format)
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))


def test_short_floats_are_widened_exactly():
    every = torch.arange(-(2**15), 2**15).to(torch.int16)
    out = [torch.empty(len(every)) for _ in range(2)]
    conversions(NVFP4).call("widen", every, every, len(every), *out)
    for got, dtype in zip(out, (torch.bfloat16, torch.float16), strict=True):
        expected = every.view(dtype).float()
        numbers = ~expected.isnan()
        assert torch.equal(got.isnan(), ~numbers)
        assert torch.equal(got[numbers].view(torch.int32), expected[numbers].view(torch.int32))
