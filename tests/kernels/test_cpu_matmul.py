"""The native products: every algorithm, instruction set and format, where they could go wrong.

Sums are float32, so a tolerance is that of float32 weights, whatever x is; only what multiplies
bfloat16 may round the weights.
"""

import itertools
import math

import pytest
import torch

import blockscale as bs
import ways
from blockscale.layouts import canonical
from blockscale.ops import choose
from blockscale.ops.operand import as_groups
from products import check, check_gated, defined, exact

pytestmark = pytest.mark.skipif(bool(ways.MISSING), reason=ways.MISSING)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 70]
COLUMNS = [1, 15, 17, 33]
FEW = [bs.NVFP4, bs.MXFP8, bs.KBIT3, bs.BNB_NF4]  # one of each kind of element and scale


def depth(fmt, chunks=9):
    """About so many chunks of k; the last one is half full where blocks are of 16."""
    if fmt.block < 32 and not fmt.is_codebook:
        return 32 * chunks + 16
    return -(-32 * chunks // fmt.block) * fmt.block


def dtypes_of(way):
    return [torch.bfloat16] if way.algorithm in ways.OF_BFLOAT16 else DTYPES


def held_in(way, fmt, dtype):
    """What a way may round the weights to."""
    return torch.bfloat16 if way.rounds_weights(fmt, dtype) else torch.float32


def check_matmul(way, y, x, w, bias=None):
    rounded = held_in(way, w.format, x.dtype)
    check(y, x.double(), exact(w), y.dtype, rounded, bias)


# --- shapes --------------------------------------------------------------------------------------


def test_every_number_of_rows_and_columns(native_way, fmt):
    k, dtypes = depth(fmt), itertools.cycle(dtypes_of(native_way))
    for n in COLUMNS:
        w = native_way.weight(torch.randn(n, k), fmt)
        given = [torch.randn(m, k).to(next(dtypes)) for m in ROWS]
        found = [bs.matmul(x, w, out_dtype=torch.float32) for x in given]
        assert [y.shape for y in found] == [(m, n) for m in ROWS]
        rounded = {held_in(native_way, fmt, x.dtype) for x in given}
        assert len(rounded) == 1  # so that one bound, of all rows at once, is that of each product
        x, y = torch.cat([x.double() for x in given]), torch.cat(found)
        check(y, x, exact(w), torch.float32, rounded.pop())


@pytest.mark.parametrize("k", [2048 + 16, 3 * 2048 + 32 * 5 + 16])
def test_a_sum_over_several_slabs(native_way, k):
    """Slabs of AMX are 2048 deep where there are more than 32 rows."""
    w = native_way.weight(torch.randn(35, k), bs.NVFP4)
    for m in (1, 6, 33, 70):
        x = torch.randn(m, k).bfloat16()
        check_matmul(native_way, bs.matmul(x, w, out_dtype=torch.float32), x, w)


def test_one_hot_activations_return_the_decoded_weight(native_way, fmt):
    """Every column of every row: fp32(fp32(decode * scale) * tensor_scale), bit for bit, but for
    codebooks that are cut."""
    k = depth(fmt, 3)
    w = native_way.weight(torch.randn(2, 33, k), fmt)
    for dtype in dtypes_of(native_way):
        y = bs.matmul(torch.eye(k).to(dtype).expand(2, k, k), w, out_dtype=torch.float32)
        if native_way.rounds_weights(fmt, dtype):
            torch.testing.assert_close(y.mT, defined(w), rtol=2.0**-8, atol=0)
        elif native_way.cuts_codebooks(fmt):
            torch.testing.assert_close(y.mT, defined(w), rtol=(3 * k / 8 + 4) * 2.0**-24, atol=0)
        else:
            assert torch.equal(y.mT, defined(w))


@pytest.mark.parametrize("format", FEW, ids=str)
def test_groups_are_products_of_their_own(native_way, format):
    """The same bits as one expert alone, by the same algorithm."""
    sizes = torch.tensor([0, 3, 1, 0, 40, 17, 0])
    experts, x = native_way.weight(torch.randn(7, 21, 192), format), torch.randn(64, 192).bfloat16()
    y = bs.grouped_matmul(x, experts, sizes)
    ends = sizes.cumsum(0).tolist()
    for e, (start, stop) in enumerate(itertools.pairwise([0, *ends])):
        assert torch.equal(y[start:stop], bs.matmul(x[start:stop], experts[e]))
    assert not y[ends[-1] :].any()


@pytest.mark.parametrize("format", FEW, ids=str)
def test_many_experts(native_way, format):
    experts = native_way.weight(torch.randn(512, 5, 64), format)
    sizes = torch.randint(4, (512,)) * (torch.rand(512) < 0.3)
    expert = torch.arange(512).repeat_interleave(sizes)
    x = torch.randn(len(expert) + 2, 64).bfloat16()
    y = bs.grouped_matmul(x, experts, sizes, out_dtype=torch.float32)
    rows, weights = x[:-2].double()[:, None], exact(experts)[expert]
    rounded = held_in(native_way, format, x.dtype)
    check(y[:-2, None], rows, weights, torch.float32, rounded)
    assert not y[-2:].any()


@pytest.mark.parametrize("format", FEW, ids=str)
def test_weights_cut_out_of_others(native_way, format):
    """Views of prepared bytes: some experts, some rows."""
    experts, x = native_way.weight(torch.randn(6, 48, 64), format), torch.randn(3, 5, 64).bfloat16()
    for cut in (experts[::2], experts[1:4, 16:32], experts[torch.tensor([5, 0, 5])]):
        y = bs.matmul(x, cut)
        for i in range(3):
            assert torch.equal(y[i], bs.matmul(x[i], cut[i]))
            check_matmul(native_way, y[i], x[i], cut[i])


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_x_may_begin_anywhere(native_way, dtype):
    w, x = native_way.weight(torch.randn(33, 80), bs.NVFP4), torch.randn(9, 80).to(dtype)
    expected = bs.matmul(x, w)
    for offset in (1, 2, 3, 7, 31):
        memory = torch.empty(x.numel() + offset, dtype=dtype)
        shifted = memory[offset:].view(9, 80).copy_(x)
        assert torch.equal(bs.matmul(shifted, w), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_x_may_have_any_strides(native_way, dtype):
    w, x = native_way.weight(torch.randn(33, 64), bs.MXFP8), torch.randn(64, 260).to(dtype)
    row = x[:1, :64]
    views = (x[::3, 5:69], x[:10, 1:129:2], x.T[:20], row.expand(6, 64), x[:9].flip(1)[:, :64])
    for view in views:
        assert torch.equal(bs.matmul(view, w), bs.matmul(view.clone().contiguous(), w))


@pytest.mark.parametrize("n", COLUMNS)
def test_nothing_outside_the_output_is_written(native_way, n):
    """The result lies in a larger matrix, which is poisoned."""
    w = native_way.weight(torch.randn(n, 80), bs.NVFP4)
    for m, dtype in ((1, torch.bfloat16), (6, torch.float32), (37, torch.bfloat16)):
        x = torch.randn(m, 80).bfloat16()
        problem = bs.explain(x, w, out_dtype=dtype).problem
        memory = torch.full((m + 2, n + 5), -7.0, dtype=dtype)
        kernel, config, _ = choose(problem)
        inside = memory[1:-1, 2 : n + 2]
        kernel.bind(problem, config, (as_groups(w.operand),))(x, (None,), None, inside)
        assert torch.equal(inside, bs.matmul(x, w, out_dtype=dtype))
        inside.fill_(-7.0)
        assert (memory == -7.0).all()


def test_every_number_of_threads_gives_the_same_bits(native_way, fmt, threads):
    w, x = native_way.weight(torch.randn(3, 149, 256), fmt), torch.randn(37, 256).bfloat16()
    sizes = torch.tensor([3, 1, 33])
    with bs.deterministic():  # formats that torch would multiply go elsewhere
        found = []
        for count in (1, 2, 7, 1, 7):
            threads(count)
            one, many = bs.matmul(x[:2], w[0]), bs.grouped_matmul(x, w, sizes)
            found.append(torch.cat([one.flatten(), many.flatten()]))
    assert all(torch.equal(each, found[0]) for each in found)


# --- what follows the sums -----------------------------------------------------------------------


@pytest.mark.parametrize("bias_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_biases_of_every_dtype(native_way, dtype, bias_dtype):
    w, wide = native_way.weight(torch.randn(33, 80), bs.NVFP4), torch.randn(40).to(bias_dtype)
    for m in (1, 5, 33):
        x = torch.randn(m, 80).to(dtype)
        for bias in (wide[7:], torch.cat([wide, wide])[:66:2]):  # unaligned, strided
            y = bs.linear(x, w, bias, out_dtype=torch.float32)
            check_matmul(native_way, y, x, w, bias)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", bs.swiglu_oai()], ids=str)
def test_gates_of_every_size(native_way, activation):
    """Also where the exponential overflows, and with two biases of different dtypes."""
    gate, up = (native_way.weight(torch.randn(33, 80), bs.NVFP4) for _ in range(2))
    biases = torch.randn(33).bfloat16(), torch.randn(33)
    for m, size in itertools.product((1, 5, 33), (1e-3, 1, 30)):
        x = (torch.randn(m, 80) * size).bfloat16()
        y = bs.gated_matmul(x, gate, up, activation, *biases, out_dtype=torch.float32)
        check_gated(y, x, gate, up, activation, *biases)


@pytest.mark.parametrize("format", FEW, ids=str)
def test_gated_experts(native_way, format):
    gate, up = (native_way.weight(torch.randn(4, 17, 64) / 8, format) for _ in range(2))
    x, sizes = torch.randn(45, 64).bfloat16(), torch.tensor([5, 0, 35, 2])
    y = bs.grouped_gated_matmul(x, gate, up, sizes)
    for e, rows in ((0, slice(0, 5)), (2, slice(5, 40)), (3, slice(40, 42))):
        check_gated(y[rows], x[rows], gate[e], up[e], "silu")
        assert torch.equal(y[rows], bs.gated_matmul(x[rows], gate[e], up[e]))
    assert not y[42:].any()


# --- codes and scales that quantize seldom makes -------------------------------------------------


def weight_of(way, fmt, codes, scale, tensor_scale=None):
    """From a code to a byte [n, k], and bytes of scales [n, blocks * bytes]."""
    packed = canonical(fmt).pack_codes(codes, fmt)
    return way.place(bs.QTensor.from_storage(fmt, packed, scale, tensor_scale=tensor_scale))


def same(y, expected):
    """Equal, and NaN where that is NaN."""
    return torch.equal(y.isnan(), expected.isnan()) and torch.equal(
        y.nan_to_num(0), expected.nan_to_num(0)
    )


@pytest.mark.parametrize("format", [bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8], ids=str)
def test_every_power_of_two_scales(native_way, format):
    """Subnormal weights too; and NaN reaches the rows that have it, no others."""
    codes = torch.randint(1 << format.element.bits, (256, 64), dtype=torch.uint8)
    ordinary = torch.tensor(format.element.values).isfinite()[codes.long()]
    codes = codes.where(ordinary, 1)
    scale = torch.full((256, 2), 127, dtype=torch.uint8)
    scale[:, 1] = torch.arange(256)
    w = weight_of(native_way, format, codes, scale)
    x = torch.eye(64).bfloat16()
    decoded = defined(w)
    held = decoded.isfinite().all(1) | (torch.arange(256) == 255)  # the rest passes float32's end
    assert held.sum() > 240
    y = bs.matmul(x, w, out_dtype=torch.float32)
    expected = decoded.T.clone()
    expected[:, 255] = math.nan  # 0 * NaN
    assert same(y[:, held], expected[:, held])


@pytest.mark.parametrize("format", [bs.MXFP4, bs.MXFP6_E2M3, bs.MXFP8, bs.MXFP8_E5M2], ids=str)
def test_small_codes_under_scales_of_every_size(native_way, format):
    """The largest scales among them, whose blocks float32 holds if their codes are small."""
    values = list(format.element.values)
    code = values.index(min(value for value in values if value > 0))
    codes = torch.full((255, 32), code, dtype=torch.uint8)
    scale = torch.arange(255, dtype=torch.uint8)[:, None]
    w = weight_of(native_way, format, codes, scale)
    y = bs.matmul(torch.eye(32).bfloat16(), w, out_dtype=torch.float32)
    assert torch.equal(y.T, defined(w))


def test_every_float32_scales(native_way):
    fmt = bs.NVFP4.replace(name="fp4_f32", scale="f32", tensor_scale="none")
    powers = torch.arange(-149.0, 125)  # of the second block
    scale = torch.stack([torch.ones(len(powers)), powers.double().exp2().float()], 1)
    codes = torch.randint(16, (len(powers), 32), dtype=torch.uint8)
    w = weight_of(native_way, fmt, codes, scale.view(torch.uint8))
    y = bs.matmul(torch.eye(32).bfloat16(), w, out_dtype=torch.float32)
    assert torch.equal(y.T, defined(w))


def test_tensor_scales_of_every_size(native_way):
    scales = torch.tensor([2.0**-149, 1e-40, 2.0**-126, 1e-20, 1.0, 1e20, 2.0**120])
    w = native_way.weight(torch.randn(7, 17, 64), bs.NVFP4, tensor_scale=torch.ones(7))
    w = bs.QTensor(w.format, w.shape, w.codes, w.scale, scales, None, w.layout)
    x = torch.eye(64).bfloat16().expand(7, 64, 64)
    assert torch.equal(bs.matmul(x, w, out_dtype=torch.float32).mT, defined(w))


@pytest.mark.parametrize("format", [bs.MXFP8, bs.MXFP8_E5M2], ids=str)
def test_every_code_among_ordinary_ones(native_way, format):
    """A word of codes is decoded replayed where all are ordinary, and carefully where one is not:
    each code stands alone among ordinary ones, at every place of a word, and all stand together."""
    values = torch.tensor(format.element.values)
    ordinary = torch.arange(256)[values.isfinite() & (values.abs() >= 1) & (values.abs() < 256)]
    codes = ordinary[torch.randint(len(ordinary), (256, 64))].to(torch.uint8)
    for place in range(4):
        codes[torch.arange(256), torch.arange(256) % 16 * 4 + place] = torch.arange(256).byte()
        check_codes(native_way, format, codes)
    finite = torch.arange(256)[values.isfinite()]
    check_codes(native_way, format, finite[torch.randint(len(finite), (256, 64))].to(torch.uint8))


def check_codes(way, fmt, codes):
    w = weight_of(way, fmt, codes, torch.full((256, 2), 125, dtype=torch.uint8))
    decoded = defined(w)
    finite = decoded.isfinite().all(1)
    y = bs.matmul(torch.eye(64).bfloat16(), w, out_dtype=torch.float32).T
    assert torch.equal(y[finite], decoded[finite])
    whole = bs.matmul(torch.ones(3, 64).bfloat16(), w, out_dtype=torch.float32)
    assert same(whole[:, ~finite], decoded[~finite].sum(1).expand(3, -1))


def test_subnormals_are_kept_where_torch_flushes_them(native_way, flush_denormal, threads):
    torch.set_flush_denormal(False)  # for as long as the operands are made
    codes, scale = torch.randint(16, (40, 64)).byte(), torch.randint(3, (40, 2)).byte()
    w = weight_of(native_way, bs.MXFP4, codes, scale)
    tiny = {dtype: (torch.randn(5, 64) * 1e-39).to(dtype) for dtype in dtypes_of(native_way)}
    plain = native_way.weight(torch.randn(40, 64), bs.NVFP4)

    def products():
        return [
            bs.matmul(x, weight, out_dtype=torch.float32)
            for x in (*tiny.values(), torch.eye(64).bfloat16())
            for weight in (w, plain)
        ]

    threads(2)
    expected = products()
    assert ((expected[-2] != 0) & (expected[-2].abs() < 2.0**-126)).any()
    torch.set_flush_denormal(True)
    for y, kept in zip(products(), expected, strict=True):
        assert torch.equal(y.view(torch.int32), kept.view(torch.int32))
    torch.set_flush_denormal(False)


def test_the_thread_still_flushes_afterwards(native_way, flush_denormal):
    w = native_way.weight(torch.randn(40, 64), bs.NVFP4)
    bs.matmul(torch.randn(3, 64), w)
    tiny = torch.tensor([2**20], dtype=torch.int32).view(torch.float32)
    assert (tiny * 1.0).view(torch.int32).item() == 0


def test_codebooks_with_tiny_entries(native_way):
    """No power of two may be added to their exponents unseen."""
    tiny = (-1e-38, 0.0, 1e-40, 2.0**-120)
    values = (-1.0, -0.5, *tiny, *(step / 10 for step in range(1, 11)))
    some = bs.KBIT4.replace(name="far_apart", scale="e8m0", tensor_scale="none", codebook=values)
    codes, scale = torch.randint(16, (40, 128)).byte(), torch.randint(110, 130, (40, 4)).byte()
    w = weight_of(native_way, some, codes, scale)
    for m in (1, 40):
        for dtype in dtypes_of(native_way):
            x = torch.randn(m, 128).to(dtype)
            y = bs.matmul(x, w, out_dtype=torch.float32)
            check(y, x.double(), exact(w), torch.float32, dtype)


def test_infinite_and_missing_activations(native_way):
    w, x = native_way.weight(torch.randn(20, 64), bs.KBIT4), torch.randn(6, 64).bfloat16()
    x[1, 5], x[3, 60], x[4, 0] = math.inf, math.nan, -math.inf
    y = bs.matmul(x, w)
    assert y[[0, 2, 5]].isfinite().all()
    assert y[3].isnan().all()
    expected = (x[[1, 4]].double() @ exact(w).T).float()
    assert torch.equal(y[[1, 4]].float(), expected)


@pytest.mark.parametrize("m", [1, 5, 40])
def test_sums_of_large_activations_stay_finite(native_way, fmt, m):
    """Before scales are applied to them, too: as far as docs/formats.md says."""
    k = depth(fmt)
    w = native_way.weight(torch.full((17, k), 2.0**-20), fmt)
    for dtype in dtypes_of(native_way):
        if dtype != torch.float16:  # which has no such numbers
            x = torch.full((m, k), 1e33 / k, dtype=dtype)
            check_matmul(native_way, bs.matmul(x, w, out_dtype=torch.float32), x, w)


# --- what is chosen ------------------------------------------------------------------------------


def test_the_way_that_is_asked_for_runs(native_way):
    w = native_way.weight(torch.randn(16, 64), bs.NVFP4)
    for m in (1, 100):
        told = bs.explain(torch.randn(m, 64).bfloat16(), w)
        assert f"runs     cpu with {native_way.algorithm} on {native_way.isa}, " in str(told)


def test_canonical_weights_are_packed_at_every_call_and_explain_says_so():
    w, x = bs.quantize(torch.randn(16, 64), bs.NVFP4), torch.randn(1, 64)
    assert "packs the weights at every call (w.prepare() does it once)" in str(bs.explain(x, w))
    assert "packs" not in str(bs.explain(x, w.prepare()))


def test_the_algorithm_follows_the_rows():
    """Many rows are worth decoding a weight once; in between runs whatever is faster."""
    w = bs.quantize(torch.randn(256, 64), bs.KBIT4).prepare()
    ran = {m: choose(bs.explain(torch.randn(m, 64), w).problem).config.algorithm for m in (1, 500)}
    assert ran[1] in ("stream", "slices")
    assert ran[500] == "gemm"
    spread = bs.quantize(torch.randn(256, 16, 64), bs.KBIT4).prepare()
    sizes = torch.ones(256, dtype=torch.int64)
    told = bs.explain(torch.randn(256, 64), spread, group_sizes=sizes)
    assert choose(told.problem).config.algorithm in ("stream", "slices")  # a row to an expert
