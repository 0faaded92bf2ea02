"""x_format="int8": what it rounds, and nothing else.

x is rounded to the format INT8. Values of the weight are rounded to integers of eight bits, which
changes a codebook and leaves E2M1 as it is. Sums are integers inside a block and float32 across.
"""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
import ways
from blockscale.formats import INT8
from bounds import branch_bound
from products import check, check_gated, exact

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)
CODEBOOKS = [bs.KBIT4, bs.KBIT2, bs.BNB_NF4]
FLOATS = [bs.NVFP4, bs.MXFP4]


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
