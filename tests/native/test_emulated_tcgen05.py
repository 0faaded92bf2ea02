"""tcgen05 and block-scaled mma.sync as the emulator has them.

Descriptors with known answers, TMEM, exact sums, and mistakes of a kernel that it reports.
"""

import ctypes
import random
import shutil
from ctypes import c_float, c_int, c_ubyte, c_uint32, c_uint64, c_void_p
from fractions import Fraction
from math import floor, log2

import pytest
import torch

from blockscale.formats import CATALOGUE, NVFP4
from blockscale.runtime.cuda import Build
from native.host_function import SCHEDULES, EmulatedError, compiled, emulator, scheduled
from native.host_library import EMULATOR

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
SOURCE = EMULATOR / "tcgen05_micro.cu"
FRAGMENTS = EMULATOR / "block_scale_micro.cu"
SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "ue4m3", "e8m0")
KINDS = ("MXF8F6F4", "MXF4", "MXF4NVF4")
MISTAKES = (
    "NONE", "NO_WAIT_FOR_COMMIT", "NO_FENCE_AFTER", "NO_WAIT_LD", "NO_DEALLOC", "NO_PROXY_FENCE",
    "COPY_OVER_SCALES", "WRONG_LANES", "UNALLOCATED", "ODD_COLUMNS", "SCALES_NOT_COPIED",
    "NOT_KEPT",
)  # fmt: skip


def values_of(name):
    for format in (*CATALOGUE.values(), NVFP4):
        for part in (format.element, format.scale):
            if getattr(part, "name", None) == name:
                return part.values
    raise KeyError(name)


class ScaledArguments(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("a", "b", "a_scales", "b_scales", "out")),
        ("idesc", c_uint32),
        ("idesc_step", c_uint32),
        *((name, c_int) for name in ("n", "products", "scale_step", "scale_tiles", "mistake")),
        ("end", c_ubyte * (128 - 68)),
    ]


# --- descriptors ----------------------------------------------------------------------------------


def element_address(descriptor, row, byte, is_tcgen05=True):
    address = c_uint32()
    inspect = emulator().inspect_descriptor
    inspect.argtypes = (c_uint64, c_int, c_int, c_int, c_void_p)
    inspect.restype = ctypes.c_char_p
    refused = inspect(descriptor, is_tcgen05, row, byte, ctypes.byref(address))
    return refused.decode() if refused else address.value


def test_known_matrix_descriptors():
    """A tile at 0x400 with the 128-byte swizzle, and scales at 0x8000 without."""
    assert element_address(0x4000404000010040, 0, 0) == 0x400
    assert (
        element_address(0x4000404000010040, 1, 0) == 0x400 + 128 + 16
    )  # the first row of eight that is moved
    assert element_address(0x4000404000010042, 3, 5) == 0x400 + 3 * 128 + ((2 ^ 3) * 16 + 5)
    assert element_address(0x4000404000010040, 9, 0) == 0x400 + 1024 + 128 + 16
    assert element_address(0x0000400800000800, 31, 15) == 0x8000 + 31 * 16 + 15
    assert "001 in bits 46" in element_address(0x4000004000010040, 0, 0)
    assert "swizzle" in element_address(0x6000404000010040, 0, 0)


def instruction(kind, word, ctas):
    facts = (c_int * 7)()
    inspect = emulator().inspect_instruction
    inspect.argtypes = (c_int, c_uint32, c_int, c_void_p)
    inspect.restype = ctypes.c_char_p
    refused = inspect(KINDS.index(kind), word, ctas, facts)
    return refused.decode() if refused else tuple(facts)


@pytest.mark.parametrize(
    ("kind", "ctas", "word", "expected"),
    [
        ("MXF8F6F4", 1, 0x08A00000, (128, 128, "e4m3", "e4m3", "e8m0", 0, 0)),
        ("MXF8F6F4", 2, 0x70C00030, (256, 256, "e4m3", "e4m3", "e8m0", 3, 3)),
        ("MXF8F6F4", 2, 0x10C00D80, (256, 256, "e2m3", "e2m3", "e8m0", 0, 0)),
        ("MXF8F6F4", 2, 0x10C01200, (256, 256, "e3m2", "e3m2", "e8m0", 0, 0)),
        ("MXF8F6F4", 2, 0x10C01400, (256, 256, "e4m3", "e2m1", "e8m0", 0, 0)),
        ("MXF4", 1, 0x08A00480, (128, 128, "e2m1", "e2m1", "e8m0", 0, 0)),
        ("MXF4", 2, 0x10C00480 + 0x40000020, (256, 256, "e2m1", "e2m1", "e8m0", 2, 2)),
        ("MXF4NVF4", 1, 0x08400480, (128, 256, "e2m1", "e2m1", "ue4m3", 0, 0)),
        ("MXF4NVF4", 2, 0x10400480, (256, 256, "e2m1", "e2m1", "ue4m3", 0, 0)),
    ],
)
def test_known_instruction_descriptors(kind, ctas, word, expected):
    m, n, a, b, scale, *ids = instruction(kind, word, ctas)
    assert (m, n, SMALL[a], SMALL[b], SMALL[scale], *ids) == expected


@pytest.mark.parametrize(
    ("kind", "word", "why"),
    [
        ("MXF8F6F4", 0x04A00000, "M is 64"),
        ("MXF8F6F4", 0x08A00100, "2 is no type"),
        ("MXF8F6F4", 0x08200000, "ue8m0"),
        ("MXF8F6F4", 0x08000000 | 33 << 17 | 1 << 23, "N is 264"),
        ("MXF4NVF4", 0x08200490, "scale ids"),
        ("MXF4", 0x08A00480 | 1 << 29, "scale ids"),
        ("MXF4NVF4", 0x88200480, "k = 96"),
        ("MXF8F6F4", 0x08A00001, "bits 0 to 3"),
    ],
)
def test_illegal_instruction_descriptors(kind, word, why):
    assert why in instruction(kind, word, 1)


# --- arithmetic -----------------------------------------------------------------------------------


def exponent_of(value):
    return floor(log2(abs(value)))


def cut(value, unit):
    """Toward zero, to a multiple of the unit."""
    units = abs(value) / unit
    return (1 if value > 0 else -1) * (units.numerator // units.denominator) * unit


def rounded(total):
    """Toward zero to float32."""
    if total == 0:
        return 0.0
    return float(cut(total, Fraction(2) ** max(exponent_of(total) - 23, -149)))


def sum_by_definition(kind, c, a, b, a_scales, b_scales, exponents):
    """Terms are aligned to the largest exponent, cut to 25 or 35 fraction bits, added, and cut."""
    if kind == "MXF8F6F4":
        fraction, terms = 25, []
        scale = a_scales[0] * b_scales[0]
        for x, y, e in zip(a, b, exponents, strict=True):
            terms.append((x * y * scale, e))
    else:
        fraction, terms = 35, []
        for group in range(4):
            inner = sum(
                x * y for x, y in zip(a[16 * group :][:16], b[16 * group :][:16], strict=True)
            )
            terms.append((inner * a_scales[group] * b_scales[group], exponents[group]))
    if c:
        terms.append((c, max(exponent_of(c), -126)))
    largest = max((e for value, e in terms if value), default=0)
    unit = Fraction(2) ** (largest - fraction)
    return rounded(sum(cut(value, unit) for value, _ in terms))


def float_exponent(name, code):
    """Of the value's leading place; a subnormal has that of the smallest normal number."""
    bits, mantissa, bias = {
        "e4m3": (4, 3, 7),
        "e5m2": (5, 2, 15),
        "e2m1": (2, 1, 1),
        "ue4m3": (4, 3, 7),
    }[name]
    return max(code >> mantissa & ((1 << bits) - 1), 1) - bias


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_cut_as_hardware_cuts_them(kind):
    order = random.Random(7)
    packed, scale_name = kind != "MXF8F6F4", "ue4m3" if kind == "MXF4NVF4" else "e8m0"
    names = ("e2m1", "e2m1") if packed else ("e4m3", "e5m2")
    inspect = emulator().inspect_sum
    inspect.restype = c_float
    inspect.argtypes = (*(c_int,) * 4, c_float, *(c_void_p,) * 4)
    finite = {name: [i for i, v in enumerate(values_of(name)) if abs(v) < 1e9] for name in names}
    for _ in range(300):
        k, groups = (64, 4) if packed else (32, 1)
        codes = [[order.choice(finite[name]) for _ in range(k)] for name in names]
        low, high = (8, 120) if scale_name == "ue4m3" else (110, 140)
        scales = [[order.randint(low, high) for _ in range(groups)] for _ in names]
        c = torch.tensor(order.choice((0.0, order.gauss(0, 1), order.gauss(0, 1e4)))).item()
        values = [
            [Fraction(values_of(n)[i]) for i in each] for n, each in zip(names, codes, strict=True)
        ]
        factors = [[Fraction(values_of(scale_name)[i]) for i in each] for each in scales]
        if packed:
            if scale_name == "e8m0":
                exponents = [scales[0][g] + scales[1][g] - 254 for g in range(4)]
            else:
                exponents = [
                    sum(float_exponent("ue4m3", each[g]) for each in scales) for g in range(4)
                ]
        else:
            of_scales = scales[0][0] + scales[1][0] - 254
            exponents = [
                float_exponent(names[0], x) + float_exponent(names[1], y) + of_scales
                for x, y in zip(*codes, strict=True)
            ]
        expected = sum_by_definition(kind, Fraction(c), *values, *factors, exponents)
        given = [(c_ubyte * len(each))(*each) for each in (*codes, *scales)]
        types = [SMALL.index(name) for name in names]
        got = inspect(packed, *types, SMALL.index(scale_name), c, *given)
        assert got == expected, (kind, got, expected)


# --- products -------------------------------------------------------------------------------------


def blocked(scales):
    """Codes of scales [rows, 4 j] as tiles of 512 bytes, [j][rows / 128].

    A tile has row r and scale k at byte (r % 32) 16 + (r // 32) 4 + k.
    """
    rows, k = scales.shape
    padded = torch.zeros(-(-rows // 128) * 128, k, dtype=torch.uint8)
    padded[:rows] = scales
    tiles = padded.view(-1, 4, 32, k // 4, 4)  # row tile, r // 32, r % 32, j, k % 4
    return tiles.permute(3, 0, 2, 1, 4).contiguous()


def packed_rows(kind, codes):
    """Codes [rows, k] as rows of 128 bytes."""
    rows = codes if kind == "MXF8F6F4" else codes[:, ::2] | codes[:, 1::2] << 4
    out = torch.zeros(len(codes), 128, dtype=torch.uint8)
    out[:, : rows.shape[1]] = rows
    return out.contiguous()


def product(kind, ctas, n, mistake="NONE", seed=0):
    """A random lossless product, and what it is."""
    order = torch.Generator().manual_seed(seed)
    element, scale = (
        "e4m3" if kind == "MXF8F6F4" else "e2m1",
        "ue4m3" if kind == "MXF4NVF4" else "e8m0",
    )
    step, products, block = (
        (32, 4, 32) if kind == "MXF8F6F4" else (64, 4, 16 if kind == "MXF4NVF4" else 32)
    )
    k, m = step * products, 128 * ctas
    few = [i for i, v in enumerate(values_of(element)) if v in (0, 0.5, 1, 1.5, 2, -1, -0.5, -3)]
    one = values_of(scale).index(1.0)
    mantissa = {"ue4m3": 8, "e8m0": 1}[scale]  # codes from one power of two to the next

    def some(rows):
        codes = torch.tensor(few, dtype=torch.uint8)[
            torch.randint(len(few), (rows, k), generator=order)
        ]
        powers = torch.randint(-2, 3, (rows, k // block), generator=order)
        return codes, (one + mantissa * powers).to(torch.uint8)

    (a, a_scale), (b, b_scale) = some(m), some(n)
    table, scales = (
        torch.tensor(values_of(name), dtype=torch.float64) for name in (element, scale)
    )
    wide = [
        table[c.long()] * scales[s.long()].repeat_interleave(block, 1)
        for c, s in ((a, a_scale), (b, b_scale))
    ]
    out = torch.full((m, n), torch.nan)
    given = [packed_rows(kind, a), packed_rows(kind, b)]
    given.append(torch.cat([blocked(each).flatten() for each in a_scale.split(128)]))
    given.append(blocked(b_scale).flatten())
    ids = {"MXF8F6F4": 0x20000010, "MXF4": 0x40000020, "MXF4NVF4": 0}[kind]
    idesc = (
        (128 * ctas // 16) << 24
        | n // 8 << 17
        | (kind != "MXF4NVF4") << 23
        | (0x480 if element == "e2m1" else 0)
    )
    arguments = ScaledArguments(
        *(each.data_ptr() for each in given), out.data_ptr(), idesc, ids, n, products,
        1 if kind == "MXF4NVF4" else 0, k // block // 4, MISTAKES.index(mistake),
    )  # fmt: skip
    return arguments, given, out, wide[0] @ wide[1].T


def run(kind, ctas, n, mistake="NONE", seed=0, products=None):
    arguments, _held, out, expected = product(kind, ctas, n, mistake, seed)
    if products:
        arguments.products = products
    build = Build(
        str(SOURCE), "scaled_product", (("KIND_OF_PRODUCT", kind), ("CTAS_OF_PRODUCT", ctas))
    )
    compiled(build).launch((1, ctas, 1), 128, 80 * 1024, 0, arguments, cluster=ctas)
    return out, expected


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
@pytest.mark.parametrize(("kind", "ctas", "n"), [("MXF8F6F4", 1, 40), ("MXF4NVF4", 2, 160)])
def test_products(kind, ctas, n, schedule):
    with scheduled(schedule):
        out, expected = run(kind, ctas, n)
    assert torch.equal(out.double(), expected)


CAUGHT = {
    "NO_WAIT_FOR_COMMIT": "race: tcgen05.* TMEM",
    "NO_FENCE_AFTER": "race: tcgen05.ld reads TMEM",
    "NO_DEALLOC": "columns of TMEM allocated",
    "NO_PROXY_FENCE": "no fence.proxy.async",
    "COPY_OVER_SCALES": "race: tcgen05.cp writes TMEM column .* tcgen05.mma",
    "WRONG_LANES": "which reaches lanes",
    "UNALLOCATED": "not allocated",
    "ODD_COLUMNS": "48 columns",
    "NOT_KEPT": "has not left in the collector buffer",
}


@pytest.mark.parametrize("mistake", CAUGHT)
def test_mistakes_are_reported(mistake):
    for schedule in SCHEDULES[:2]:
        with scheduled(schedule), pytest.raises(EmulatedError, match=CAUGHT[mistake]):
            run("MXF8F6F4", 1, 16, mistake)


@pytest.mark.parametrize("mistake", ["NO_WAIT_LD", "SCALES_NOT_COPIED"])
def test_what_has_not_come_is_no_number(mistake):
    with scheduled(SCHEDULES[1]):
        out, _ = run("MXF8F6F4", 1, 16, mistake)
    assert out.isnan().all()


# --- fragments of mma.sync ------------------------------------------------------------------------


def fragment(words, rows, in_word, is_a):
    """Codes [rows, k] of the registers [32, 4 or 2] of a warp, by the PTX manual's figures."""
    k = 8 * in_word
    codes = torch.zeros(rows, k, dtype=torch.long)
    bits = 32 // in_word
    for lane in range(32):
        for i in range(words.shape[1] * in_word):
            code = int(words[lane, i // in_word]) >> bits * (i % in_word) & ((1 << bits) - 1)
            if is_a:
                row, at = (
                    lane // 4 + 8 * (i // in_word % 2),
                    lane % 4 * in_word + i % in_word + i // (2 * in_word) * 4 * in_word,
                )
            else:
                row, at = lane // 4, lane % 4 * in_word + i % in_word + i // in_word * 4 * in_word
            codes[row, at] = code
    return codes


def test_fragments_of_block_scaled_mma():
    order = torch.Generator().manual_seed(3)
    a, b = (torch.randint(0, 1 << 31, (32, count), generator=order) for count in (4, 2))
    a, b = (each & 0x33333333 for each in (a, b))  # small numbers in every format
    a_scale, b_scale = (torch.full((32,), 0x78787878) for _ in range(2))  # 256 as ue4m3, or 2^-7
    for scale in (a_scale, b_scale):
        for byte in range(4):
            scale += torch.randint(0, 4, (32,), generator=order) << 8 * byte
    c = torch.zeros(32, 16)
    held = [each.to(torch.int32).contiguous() for each in (a, b, a_scale, b_scale)]
    arguments = (c_void_p * 8)(*(each.data_ptr() for each in held), c.data_ptr())
    kernel = compiled(Build(str(FRAGMENTS), "scaled_fragments", ()))
    kernel.launch((1, 1, 1), 32, 0, 0, arguments)
    m, n = torch.arange(16), torch.arange(8)
    cases = [  # kind, types, first byte and thread of the scales of a, then of b
        (8, "e2m1", "e2m1", "ue4m3", 4, (0, 1), (0, 2)),
        (8, "e2m1", "e2m1", "e8m0", 2, (2, 0), (0, 3)),
        (4, "e4m3", "e2m1", "e8m0", 1, (3, 1), (1, 0)),
        (4, "e3m2", "e2m3", "e8m0", 1, (0, 0), (2, 1)),
    ]
    for i, (in_word, a_type, b_type, scale, scales, of_a, of_b) in enumerate(cases):
        table = torch.tensor(values_of(scale), dtype=torch.float64)
        wide = []
        for words, type_, rows, is_a in ((held[0], a_type, 16, True), (held[1], b_type, 8, False)):
            codes = fragment(words, rows, in_word, is_a)
            if in_word == 4:
                codes = codes >> 2 & 15 if type_ == "e2m1" else codes & (len(values_of(type_)) - 1)
            lanes = 4 * (m % 8) + 2 * of_a[1] + m // 8 if is_a else 4 * n + of_b[1]
            first = of_a[0] if is_a else of_b[0]
            words = held[2 if is_a else 3].long()[lanes]
            each = torch.stack([table[words >> 8 * (first + j) & 0xFF] for j in range(scales)], 1)
            block = codes.shape[1] // scales
            wide.append(
                torch.tensor(values_of(type_), dtype=torch.float64)[codes]
                * each.repeat_interleave(block, 1)
            )
        sums = wide[0] @ wide[1].T
        lane = torch.arange(32)
        got = torch.zeros(16, 8, dtype=torch.float64)
        for j in range(4):
            got[lane // 4 + 8 * (j // 2), 2 * (lane % 4) + j % 2] = c[:, 4 * i + j].double()
        assert torch.equal(got, sums), cases[i]
