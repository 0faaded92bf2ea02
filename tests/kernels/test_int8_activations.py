"""x_format="int8": what it rounds, and nothing else.

x is rounded to the format INT8 inside the product, to the bits of the definition. Values of the
weight are rounded to integers of eight bits, which changes a codebook and leaves E2M1 as it is.
Sums are integers inside a block and float32 across.
"""

import itertools
from dataclasses import replace

import pytest
import torch

import blockscale as bs
import ways
from blockscale.formats import INT8
from blockscale.numerics import quantize_rows
from bounds import branch_bound
from products import check, check_gated, exact

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)
CODEBOOKS = [bs.KBIT4, bs.KBIT2, bs.BNB_NF4]
FLOATS = [bs.NVFP4, bs.MXFP4]
# Segments of 16 and 32, codes of 4 and 2 bits, several segments to a scale, scales of 4 bytes.
KINDS = [bs.NVFP4, bs.MXFP4, bs.KBIT2, bs.KBIT2.replace(block=16), bs.BNB_NF4]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=ways.INT8 or [None], ids=str)
def int8_way(request):
    with request.param.only() as way:
        yield way


def unit_of(table):
    """What an integer is worth: a half for E2M1, else the 127th part of the largest value."""
    halves = torch.equal(2 * table, (2 * table).round()) and 1 < table.abs().max() < 64
    return 0.5 if halves else table.abs().max() / 127


def multiplied(w):
    """The weights that meet x, float64: decode is rounded to multiples of the unit."""
    if w.codebook is None:
        return exact(w)
    unit = unit_of(w.codebook)
    return exact(replace(w, codebook=(w.codebook / unit).round() * unit))


def rounded(x):
    return exact(bs.quantize(x, INT8))


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 33])
@pytest.mark.parametrize("format", [*FLOATS, *CODEBOOKS], ids=str)
def test_only_x_and_the_codebook_are_rounded(int8_way, format, m):
    for n in (1, 17, 33):
        w, x = int8_way.weight(torch.randn(n, 320), format), torch.randn(m, 320).bfloat16()
        y = bs.matmul(x, w, x_format="int8", out_dtype=torch.float32)
        check(y, rounded(x), multiplied(w), torch.float32, torch.float32)
        # The codebook's part of that, from its unit alone.
        if format.is_codebook:
            unit = unit_of(w.codebook)
            scales = exact(replace(w, codebook=torch.ones_like(w.codebook)))
            moved, expected = rounded(x).abs() @ (unit / 2 * scales).T, rounded(x) @ exact(w).T
            bound = branch_bound(rounded(x), exact(w), expected, x_dtype=torch.float32)
            assert ((y.double() - expected).abs() <= moved + bound).all()


@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4], ids=str)
def test_x_that_int8_holds_is_not_rounded(int8_way, format):
    w = int8_way.weight(torch.randn(20, 64), format)
    x = torch.randint(-127, 128, (5, 64)).float()
    x[:, ::32] = 127
    y = bs.matmul(x, w, x_format="int8")
    check(y, x.double(), multiplied(w), torch.float32, torch.float32)


def test_the_largest_sums_fit(int8_way):
    """All of x at the same end, all weights too."""
    for format in (bs.NVFP4, bs.MXFP4, bs.KBIT2):
        for sign in (-1, 1):
            w = int8_way.weight(torch.full((16, 64), 6.0), format)
            x = torch.full((3, 64), sign * 5.0)
            y = bs.matmul(x, w, x_format="int8")
            check(y, x.double(), multiplied(w), torch.float32, torch.float32)


def test_every_other_format_takes_int8_too(int8_way, fmt):
    """By the other algorithms, whose weights are not rounded."""
    w, x = int8_way.weight(torch.randn(17, 256), fmt), torch.randn(5, 256)
    weights = multiplied(w) if fmt.element.bits in (2, 4) else exact(w)
    check(bs.matmul(x, w, x_format="int8"), rounded(x), weights, torch.float32, torch.float32)


def test_groups_gates_and_threads(int8_way, threads):
    gate, up = (int8_way.weight(torch.randn(4, 37, 64), bs.MXFP4) for _ in range(2))
    x, sizes = torch.randn(23, 64) / 8, torch.tensor([5, 0, 13, 3])
    found = []
    for count in (1, 2, 7):
        threads(count)
        found.append(bs.grouped_gated_matmul(x, gate, up, sizes, x_format="int8"))
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])
    for e, rows in ((0, slice(0, 5)), (2, slice(5, 18)), (3, slice(18, 21))):
        check_gated(found[0][rows], rounded(x[rows]).float(), gate[e], up[e], "silu")
    assert not found[0][21:].any()


def test_gate_and_up_may_have_codebooks_of_their_own(int8_way):
    values = torch.randn(2, 16, 64)
    formats = [bs.fit_codebook(values[i] ** (2 * i + 1), 4) for i in range(2)]
    gate, up = (int8_way.weight(values[i] ** (2 * i + 1), formats[i]) for i in range(2))
    x = torch.randn(3, 64) / 8
    y = bs.gated_matmul(x, gate, up, x_format="int8")
    tables = [replace(w, codebook=(w.codebook / u).round() * u) for w, u in
              ((w, unit_of(w.codebook)) for w in (gate, up))]  # fmt: skip
    check_gated(y, rounded(x).float(), *tables, "silu")


def test_nan_reaches_its_row_alone(int8_way):
    w, x = int8_way.weight(torch.randn(16, 64), bs.NVFP4), torch.randn(5, 64)
    x[2, 40] = torch.nan
    y = bs.matmul(x, w, x_format="int8")
    assert y[2].isnan().all()
    assert y[[0, 1, 3, 4]].isfinite().all()


def test_the_bytes_are_multiplied(int8_way):
    w = int8_way.weight(torch.randn(16, 64), bs.NVFP4)
    told = bs.explain(torch.randn(100, 64), w, x_format="int8")
    assert f"runs     cpu with int8 on {int8_way.isa}, " in str(told)


# --- x is rounded in the product: the bits of a product with x that was rounded before ------------


def defined_product(x, w, **options):
    """Of x as the definition rounds it, with codes and scales that exist beforehand."""
    rows = x.reshape(-1, x.shape[-1])
    codes, scale = quantize_rows(rows, INT8, "absmax", None, torch.tensor(INT8.codebook))
    q = replace(bs.quantize(rows, INT8), codes=codes, scale=scale)
    y = bs.matmul(q, w, **{"out_dtype": x.dtype, **options})
    return y.reshape(*x.shape[:-1], y.shape[-1])


def same_bits(a, b):
    whole = torch.int32 if a.dtype == torch.float32 else torch.int16
    return a.dtype == b.dtype and torch.equal(a.view(whole), b.view(whole))


@pytest.mark.parametrize("format", KINDS, ids=str)
def test_every_number_of_rows_and_columns(int8_way, format):
    dtypes = itertools.cycle(DTYPES)
    for n in (1, 15, 17, 33):
        w = int8_way.weight(torch.randn(n, 1088), format)  # more than is rounded at a time
        for m in range(0, 71, 1 if n == 17 else 9):
            x = torch.randn(m, 1088).mul(torch.randn(m, 1088).exp()).to(next(dtypes))
            y = bs.matmul(x, w, x_format="int8")
            assert y.shape == (m, n)
            assert same_bits(y, defined_product(x, w))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_middle_of_two_integers(int8_way, dtype):
    """The numbers beside it, whatever the scale; weights of one show each integer."""
    table = torch.tensor(INT8.codebook).double()
    middles = (table[1:-1] + table[2:]) / 2
    steps = torch.arange(-3, 4, dtype=torch.float64)
    beside = middles[:, None] * (1 + steps * torch.finfo(dtype).eps / 2)
    w = int8_way.weight(torch.eye(1856), bs.MXFP4)
    for amax in (1.0, 127.0, 254.0, 3.7, 1e-30, 1e37):
        if amax > torch.finfo(dtype).max or amax < torch.finfo(dtype).tiny:
            continue
        places = torch.zeros(58 * 31, dtype=torch.float64)
        places[: beside.numel()] = amax * beside.flatten()
        blocks = torch.cat([torch.full((58, 1), amax), places.view(58, 31)], 1)
        x = blocks.reshape(1, -1).to(dtype)
        options = {"out_dtype": torch.float32}
        y = bs.matmul(x, w, x_format="int8", **options)
        assert same_bits(y, defined_product(x, w, **options))
        assert len(y.unique()) >= 200


def test_hard_numbers(int8_way):
    """Zeros of both signs, subnormal numbers, the largest, and blocks that are lost."""
    w = int8_way.weight(torch.randn(20, 256), bs.NVFP4)
    for dtype in DTYPES:
        info = torch.finfo(dtype)
        x = torch.randn(6, 256)
        x[0] = 0.0
        x[1, ::2] = -0.0
        x[2] *= info.smallest_normal / 8
        x[3] = info.max * torch.rand(256).sub(0.5).sign()
        x[4, 40], x[4, 100], x[4, 200] = torch.inf, -torch.inf, torch.nan
        x[5] = info.smallest_normal * torch.finfo(dtype).eps
        x = x.to(dtype)
        y = bs.matmul(x, w, x_format="int8", out_dtype=torch.float32)
        assert same_bits(y, defined_product(x, w, out_dtype=torch.float32))
        assert y[4].isnan().all()
        assert not y[0].any()


def test_x_may_lie_anywhere(int8_way):
    w = int8_way.weight(torch.randn(33, 128), bs.NVFP4)
    memory = torch.randn(4000).bfloat16()
    laid = [
        memory[1 : 1 + 3 * 128].view(3, 128),  # at an odd address
        memory.as_strided((5, 128), (131, 1), 7),
        memory.as_strided((5, 128), (1, 5), 3),
        memory.as_strided((9, 128), (0, 1), 1),
        memory.as_strided((2, 3, 128), (640, 200, 1), 0),
        memory.as_strided((70, 128), (3, 2), 0),
    ]
    for x in laid:
        assert same_bits(bs.matmul(x, w, x_format="int8"), defined_product(x, w))


@pytest.mark.parametrize("m", [1, 5, 8, 70])
def test_threads_do_not_change_bits(int8_way, threads, m):
    w = int8_way.weight(torch.randn(333, 4096), bs.NVFP4)
    x = torch.randn(m, 4096).bfloat16()
    expected = defined_product(x, w)
    for count in (1, 2, 7):
        threads(count)
        for _ in range(2):
            assert same_bits(bs.matmul(x, w, x_format="int8"), expected)


def test_canonical_weights_give_the_same_bits(int8_way):
    q, x = bs.quantize(torch.randn(40, 96), bs.KBIT4), torch.randn(7, 96)
    y = bs.matmul(x, int8_way.place(q), x_format="int8")
    assert same_bits(y, bs.matmul(x, q, x_format="int8"))


def test_experts_round_their_rows(int8_way):
    experts = int8_way.weight(torch.randn(3, 20, 64), bs.KBIT2)
    x, sizes = torch.randn(19, 64), torch.tensor([11, 0, 6])
    y = bs.grouped_matmul(x, experts, sizes, x_format="int8")
    assert same_bits(y[:11], defined_product(x[:11], experts[0]))
    assert same_bits(y[11:17], defined_product(x[11:17], experts[2]))
    assert not y[17:].any()


# --- plans ---------------------------------------------------------------------------------------


def test_a_plan_serves_int8_calls():
    w, bias = bs.quantize(torch.randn(24, 64), bs.NVFP4).prepare(), torch.randn(24)
    for x in (torch.randn(3, 64), torch.randn(2, 3, 64).half(), torch.randn(64, 3).bfloat16().T):
        w.plans.clear()
        found = [bs.linear(x, w, bias, x_format="int8") for _ in range(2)]
        (plan,) = w.plans.values()
        assert plan.choice.config.algorithm == "int8"
        x.requires_grad_()  # which passes by the plan
        found.append(bs.linear(x, w, bias, x_format="int8").detach())
        assert same_bits(found[1], found[0])
        assert same_bits(found[2], found[0])


def test_exact_and_int8_calls_have_plans_of_their_own():
    q, x = bs.quantize(torch.randn(24, 64), bs.NVFP4), torch.randn(3, 64)
    w, expected = q.prepare(), defined_product(x, q.prepare())
    for _ in range(2):
        exact_y, y = bs.matmul(x, w), bs.matmul(x, w, x_format="int8")
        assert same_bits(y, expected)
        assert not torch.equal(y, exact_y)
    assert len(w.plans) == 2


def test_formats_without_an_int8_kernel_have_no_plan():
    w, x = bs.quantize(torch.randn(24, 64), bs.MXFP8).prepare(), torch.randn(3, 64)
    first = bs.matmul(x, w, x_format="int8")
    assert list(w.plans.values()) == [None]
    assert same_bits(bs.matmul(x, w, x_format="int8"), first)
    check(first, rounded(x), exact(w), torch.float32, torch.float32)


def test_batches_and_gates_have_plans():
    gate, up = (bs.quantize(torch.randn(2, 24, 64), bs.KBIT4).prepare() for _ in range(2))
    x = torch.randn(2, 5, 64)
    first = bs.gated_matmul(x, gate, up, x_format="int8")
    assert next(iter(gate.plans.values())) is not None
    assert same_bits(bs.gated_matmul(x, gate, up, x_format="int8"), first)
    for i in range(2):
        one = bs.gated_matmul(x[i], gate[i], up[i], x_format="int8")
        assert same_bits(one, first[i])
