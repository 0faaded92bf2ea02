"""Every way to multiply (ways.py) against the definition, on every format."""

import pytest
import torch

import blockscale as bs
from products import check, check_exact, check_gated, exact

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weight_only(kernel, fmt, dtype):
    for m, n in ((1, 7), (5, 33), (17, 1)):
        w, x = kernel.weight(torch.randn(n, 256), fmt), torch.randn(m, 256).to(dtype)
        y, dense = bs.matmul(x, w), exact(w)
        check(y, x.double(), dense, dtype, dtype)
        if kernel.name == "reference" and not fmt.is_codebook:
            check_exact(y, x.double() @ dense.mT)


def test_one_hot_activations_return_the_decoded_weight(kernel, fmt):
    w = kernel.weight(torch.randn(9, 256), fmt)
    dense = exact(w)
    columns = [0, 1, fmt.block - 1, fmt.block, 255]
    for dtype in DTYPES:
        x = torch.zeros(len(columns), 256, dtype=dtype)
        x[range(len(columns)), columns] = 1
        y = bs.matmul(x, w, out_dtype=torch.float32)
        expected = dense[:, columns].T
        once = kernel.name == "reference" or not fmt.is_codebook  # rounded
        if once and not kernel.rounds_weights(fmt, dtype):
            assert torch.equal(y, expected.float())
        else:
            check(y, x.double(), dense, torch.float32, dtype)


def test_lossless_inputs_leave_accumulation_error_only(kernel, fmt):
    """Small integers: every product and every partial sum is exact, so the result is too."""
    if fmt.is_codebook or fmt.scale.bits == 32 or fmt.scale.name == "e4m4":
        pytest.skip("does not hold these integers exactly")
    element = fmt.element
    integers = [v for v in element.values if abs(v) <= 8 and v == round(v)]
    w = torch.tensor(integers)[torch.randint(len(integers), (11, 256))]
    w[:, :: fmt.block] = element.max if element.max <= 28 else 8.0
    if element.max > 28:
        w[:, 1 :: fmt.block] = element.max
    q = kernel.weight(w, fmt, tensor_scale=1.0 if fmt.has_tensor_scale else None)
    assert torch.equal(q.dequantize(), w)
    x = torch.randint(-8, 9, (6, 256)).float()
    assert torch.equal(bs.matmul(x, q), x @ w.T)


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_out_dtype(kernel, out_dtype):
    w, x = kernel.weight(torch.randn(12, 64), bs.NVFP4), torch.randn(3, 64).bfloat16()
    y = bs.matmul(x, w, out_dtype=out_dtype)
    check(y, x.double(), exact(w), out_dtype, torch.bfloat16)


X_FORMATS = [bs.NVFP4, bs.MXFP8, bs.MXFP4, bs.KBIT4]


def test_x_quantized_on_the_fly(kernel, fmt, request):
    """Every way meets every format of w and x, and these each other: a quarter of all triples."""
    at = request.node.callspec.indices
    x_fmt = X_FORMATS[(at["kernel"] + at["fmt"]) % len(X_FORMATS)]
    w, x = kernel.weight(torch.randn(10, 256), fmt), torch.randn(4, 256).bfloat16()
    y = bs.matmul(x, w, x_format=x_fmt)
    rows = "row" if x_fmt.has_tensor_scale else None
    quantized = bs.quantize(x, x_fmt, tensor_scale=rows)
    check(y, exact(quantized), exact(w), torch.bfloat16, torch.bfloat16)
    given = bs.matmul(quantized, w)
    assert torch.equal(given, y)
    assert given.dtype == torch.bfloat16


def test_x_in_a_codebook_of_its_own(kernel):
    w, x = kernel.weight(torch.randn(10, 64), bs.MXFP8), torch.randn(4, 64)
    mine = bs.fit_codebook(x, 4)
    y = bs.matmul(x, w, x_format=mine)
    assert torch.equal(y, bs.matmul(bs.quantize(x, mine), w, out_dtype=torch.float32))
    assert not torch.equal(y, bs.matmul(x, w, x_format=bs.KBIT4))


def test_a_static_activation_scale(kernel):
    w, x = kernel.weight(torch.randn(10, 64), bs.NVFP4), torch.randn(4, 64)
    for scale in (0.01, torch.tensor([0.01, 0.02, 0.005, 0.04])):  # one number, or one per row
        y = bs.matmul(x, w, x_format=bs.NVFP4, x_tensor_scale=scale)
        quantized = bs.quantize(x, bs.NVFP4, tensor_scale=scale)
        check(y, exact(quantized), exact(w), torch.float32, torch.bfloat16)
        assert torch.equal(y, bs.matmul(quantized, w, out_dtype=torch.float32))


def test_rows_do_not_depend_on_their_neighbours(kernel):
    w, x = kernel.weight(torch.randn(16, 64), bs.NVFP4), torch.randn(6, 64)
    other = torch.randn(6, 64) * torch.logspace(-3, 3, 6)[:, None]
    other[2] = x[2]
    for x_format in (None, bs.NVFP4):
        y = bs.matmul(x, w, x_format=x_format)
        assert torch.equal(bs.matmul(other, w, x_format=x_format)[2], y[2])


def test_mixed_formats(kernel):
    x, w = bs.quantize(torch.randn(5, 128), bs.MXFP8), kernel.weight(torch.randn(9, 128), bs.MXFP4)
    check(bs.matmul(x, w), exact(x), exact(w), torch.bfloat16, torch.bfloat16)


def test_batched(kernel, fmt):
    w, x = kernel.weight(torch.randn(3, 10, 256), fmt), torch.randn(3, 4, 256)
    bias = torch.randn(3, 10)
    y, with_bias, dense = bs.matmul(x, w), bs.linear(x, w, bias), exact(w)
    for i in range(3):
        check(y[i], x[i].double(), dense[i], torch.float32, torch.float32)
        check(with_bias[i], x[i].double(), dense[i], torch.float32, torch.float32, bias[i])


def test_batched_with_both_quantized(kernel):
    """The batched GEMV of block-scaled FP4: one activation row for each of l matrices."""
    x, w = torch.randn(4, 1, 128), kernel.weight(torch.randn(4, 24, 128), bs.NVFP4)
    q = bs.quantize(x, bs.NVFP4)
    y, wide, dense = bs.matmul(q, w, out_dtype=torch.float16), exact(q), exact(w)
    for i in range(4):
        check(y[i], wide[i], dense[i], torch.float16, torch.float16)


def test_leading_dimensions_of_x(kernel):
    w, x = kernel.weight(torch.randn(8, 64), bs.MXFP8), torch.randn(2, 3, 5, 64)
    y = bs.matmul(x, w)
    assert y.shape == (2, 3, 5, 8)
    assert torch.equal(y.reshape(-1, 8), bs.matmul(x.reshape(-1, 64), w))
    row = bs.matmul(x[0, 0, 0], w)  # other numbers of rows may be summed in another order
    assert row.shape == (8,)
    check(row[None], x[0, 0, :1].double(), exact(w), torch.float32, torch.float32)
    q = bs.quantize(x, bs.MXFP8)
    assert bs.matmul(q, w).shape == (2, 3, 5, 8)


def test_strided_x(kernel):
    w, x = kernel.weight(torch.randn(8, 64), bs.MXFP8), torch.randn(10, 128)
    for view in (x[::2, ::2], x.T[:64].T[1:4], x[:, 64:]):
        assert torch.equal(bs.matmul(view, w), bs.matmul(view.contiguous(), w))


def test_no_rows(kernel, fmt):
    w = kernel.weight(torch.randn(6, 256), fmt)
    assert bs.matmul(torch.randn(0, 256), w).shape == (0, 6)
    assert bs.matmul(torch.randn(2, 0, 256), w).shape == (2, 0, 6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias(kernel, dtype):
    w, x = kernel.weight(torch.randn(7, 64), bs.NVFP4), torch.randn(4, 64).to(dtype)
    bias = torch.randn(7).to(dtype)
    check(bs.linear(x, w, bias), x.double(), exact(w), dtype, dtype, bias)


ACTIVATIONS = ["silu", "gelu", "gelu_tanh", bs.swiglu_oai(), bs.swiglu_oai(1.5, 0.75)]


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_gated(kernel, activation, with_bias):
    gate, up = (kernel.weight(torch.randn(13, 64), bs.NVFP4) for _ in range(2))
    biases = (torch.randn(13), torch.randn(13)) if with_bias else (None, None)
    for dtype in DTYPES:
        x = (torch.randn(5, 64) / 8).to(dtype)
        y = bs.gated_matmul(x, gate, up, activation, *biases)
        assert y.dtype == dtype
        check_gated(y, x, gate, up, activation, *biases, exactly=kernel.name == "reference")


def test_gated_every_format(kernel, fmt):
    gate, up = (kernel.weight(torch.randn(9, 256), fmt) for _ in range(2))
    x = torch.randn(3, 256) / 16
    y = bs.gated_matmul(x, gate, up)
    check_gated(y, x, gate, up, "silu", exactly=kernel.name == "reference")


def test_gated_with_x_quantized(kernel):
    gate, up = (kernel.weight(torch.randn(9, 64), bs.NVFP4) for _ in range(2))
    q = bs.quantize(torch.randn(3, 64) / 8, bs.NVFP4, tensor_scale="row")
    y = bs.gated_matmul(q, gate, up, out_dtype=torch.float32)
    check_gated(y, exact(q).float(), gate, up, "silu")


SIZES = {
    "ragged": [3, 0, 7, 1],
    "one group": [11, 0, 0, 0],
    "last only": [0, 0, 0, 11],
    "empty": [0, 0, 0, 0],
    "short": [2, 1, 0, 3],
    "even": [3, 3, 3, 2],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_grouped(kernel, sizes, index_dtype):
    experts, x = kernel.weight(torch.randn(4, 10, 64), bs.NVFP4), torch.randn(11, 64)
    bias = torch.randn(4, 10)
    group_sizes = torch.tensor(sizes, dtype=index_dtype)
    y = bs.grouped_matmul(x, experts, group_sizes)
    biased = bs.grouped_matmul(x, experts, group_sizes, bias)
    start, dense = 0, exact(experts)
    for w, expert, size in zip(dense, range(4), sizes, strict=True):
        rows = slice(start, start + size)
        check(y[rows], x[rows].double(), w, torch.float32, torch.float32)
        check(biased[rows], x[rows].double(), w, torch.float32, torch.float32, bias[expert])
        start += size
    assert not y[start:].any()
    assert not biased[start:].any()


def test_grouped_every_format(kernel, fmt):
    experts, x = kernel.weight(torch.randn(3, 5, 256), fmt), torch.randn(7, 256).bfloat16()
    y = bs.grouped_matmul(x, experts, torch.tensor([4, 0, 3]))
    dense = exact(experts)
    check(y[:4], x[:4].double(), dense[0], torch.bfloat16, torch.bfloat16)
    check(y[4:], x[4:].double(), dense[2], torch.bfloat16, torch.bfloat16)


def test_grouped_x_quantized(kernel):
    experts, x = kernel.weight(torch.randn(3, 5, 64), bs.MXFP4), torch.randn(7, 64)
    sizes = torch.tensor([4, 1, 2])
    y = bs.grouped_matmul(x, experts, sizes, x_format=bs.MXFP8)
    q = bs.quantize(x, bs.MXFP8)
    assert torch.equal(y, bs.grouped_matmul(q, experts, sizes, out_dtype=torch.float32))
    check(y[4:5], exact(q)[4:5], exact(experts[1]), torch.float32, torch.bfloat16)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_grouped_gated(kernel, activation):
    gate, up = (kernel.weight(torch.randn(3, 6, 64), bs.MXFP8) for _ in range(2))
    biases = torch.randn(3, 6), torch.randn(3, 6)
    x, sizes = torch.randn(9, 64) / 8, torch.tensor([2, 0, 6])
    y = bs.grouped_gated_matmul(x, gate, up, sizes, activation, *biases)
    for e, rows in ((0, slice(0, 2)), (2, slice(2, 8))):
        check_gated(y[rows], x[rows], gate[e], up[e], activation, biases[0][e], biases[1][e])
    assert not y[8:].any()


def test_no_experts_and_no_columns(kernel):
    x, nobody = torch.randn(5, 64), torch.tensor([], dtype=torch.int64)
    empty = kernel.weight(torch.randn(0, 8, 64), bs.NVFP4)
    assert not bs.grouped_matmul(x, empty, nobody).any()
    assert bs.matmul(x[:0].reshape(0, 5, 64), empty).shape == (0, 5, 8)
    flat = kernel.weight(torch.randn(0, 64), bs.NVFP4)
    assert bs.matmul(x, flat).shape == (5, 0)


def test_outputs_are_written_everywhere(kernel, fmt, monkeypatch):
    """Poisoned with NaN before the launch."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        out = empty(*args, **kwargs)
        return out.fill_(torch.nan) if out.is_floating_point() else out.fill_(0xAB)

    monkeypatch.setattr(torch, "empty", poisoned)
    w, x = kernel.weight(torch.randn(2, 33, 256), fmt), torch.randn(2, 5, 256)
    assert bs.matmul(x, w).isfinite().all()
    assert bs.grouped_matmul(x[0], w, torch.tensor([2, 1])).isfinite().all()
    assert w.dequantize().isfinite().all()


def test_a_second_run_has_the_same_bits(kernel, fmt):
    w, x = kernel.weight(torch.randn(40, 256), fmt), torch.randn(9, 256)
    assert torch.equal(bs.matmul(x, w), bs.matmul(x, w))


def test_precision_settings_do_not_reach_the_sum(kernel):
    w, x = kernel.weight(torch.randn(40, 256), bs.MXFP8), torch.randn(9, 256)
    expected = bs.matmul(x, w)
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(bs.matmul(x, w), expected)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "place", ["planes/blocked", "bits/rows", "planes/rows", "cpu_tiles/cpu_tiles"]
)
def test_every_layout_gives_the_same_product(kernel, place):
    w, x = kernel.weight(torch.randn(2, 130, 64), bs.KBIT4), torch.randn(2, 3, 64)
    y = bs.matmul(x, w.pack(place))
    for i in range(2):
        check(y[i], x[i].double(), exact(w[i]), torch.float32, torch.float32)
    if kernel.name == "reference" or place != "planes/blocked":  # which torch multiplies
        assert torch.equal(y, bs.matmul(x, w))


def test_nvfp4_times_nvfp4_correlates_with_float32(kernel):
    x, w = torch.randn(128, 2048), torch.randn(256, 2048)
    y = bs.matmul(x, kernel.weight(w, bs.NVFP4), x_format=bs.NVFP4)
    both = torch.stack([y.flatten(), (x @ w.T).flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.990


def test_nan_and_inf_propagate(kernel):
    w = torch.randn(4, 64)
    w[1, 3] = torch.nan
    y = bs.matmul(torch.randn(2, 64), kernel.weight(w, bs.NVFP4))
    assert y[:, 1].isnan().all()
    assert y[:, [0, 2, 3]].isfinite().all()
