import copy
import dataclasses

import pytest
import torch

import blockscale as bs
from blockscale.layouts import CODES, SCALES, Layout


def test_facts(fmt):
    q = bs.quantize(torch.randn(3, 8, 256), fmt)
    assert q.shape == (3, 8, 256)
    assert q.numel() == 3 * 8 * 256
    assert len(q) == 3
    assert q.device.type == "cpu"
    assert q.codes.dtype == q.scale.dtype == torch.uint8
    assert q.codes.nbytes + q.scale.nbytes == fmt.bits_per_value * q.numel() / 8
    assert q.nbytes == sum(part.nbytes for part in q.tensors)
    assert q.bits_per_value == 8 * q.nbytes / q.numel()
    assert (q.tensor_scale is not None) == fmt.has_tensor_scale
    assert (q.codebook is not None) == fmt.is_codebook


def test_a_weight_of_2880_by_2880_takes_4_67_megabytes():
    q = bs.quantize(torch.randn(2880, 2880), bs.NVFP4)
    assert q.codes.nbytes + q.scale.nbytes == 4_665_600


def test_repr_tells_all():
    q = bs.quantize(torch.ones(2, 64), bs.NVFP4)
    assert repr(q) == (
        "QTensor(nvfp4 [2, 64], tensor_scale 0.000372024, 4.75 bits/value, 76 bytes, "
        "layout bits/rows, cpu)"
    )
    assert "codebook of 8" in repr(bs.quantize(torch.randn(3, 2, 64), bs.KBIT3))
    assert "tensor_scale [3]" in repr(bs.quantize(torch.randn(3, 2, 64), bs.KBIT3))


def test_immutable():
    q = bs.quantize(torch.randn(2, 64), bs.NVFP4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        q.scale = q.codes
    with pytest.raises(TypeError):
        hash(q)


def test_packing_is_lossless(fmt):
    q = bs.quantize(torch.randn(2, 130, 256), fmt)
    for codes in CODES:
        for scales in SCALES:
            if fmt.scale.bits == 32 and scales == "blocked":
                continue
            packed = q.pack(f"{codes}/{scales}")
            assert packed.layout == Layout(codes, scales)
            assert packed == q
            assert torch.equal(packed.dequantize(), q.dequantize())
            again = packed.pack(q.layout)
            assert torch.equal(again.codes, q.codes)
            assert torch.equal(again.scale, q.scale)
    assert q.pack(q.layout) is q


def test_f32_scales_cannot_be_blocked():
    with pytest.raises(ValueError, match="blocked scales are one byte each"):
        bs.quantize(torch.randn(2, 64), bs.BNB_NF4).pack("blocked")


def test_prepare_and_to():
    q = bs.quantize(torch.randn(4, 64), bs.NVFP4)
    assert q.prepare() == q
    assert q.prepare("cpu") == q
    assert q.to("cpu") is q
    moved = q.to("meta")
    assert moved.device.type == "meta"
    assert all(part.device.type == "meta" for part in moved.tensors)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_no_gpu_is_said_plainly():
    q = bs.quantize(torch.randn(4, 64), bs.NVFP4)
    for move in (q.to, q.prepare):
        with pytest.raises(RuntimeError, match="sees no CUDA device"):
            move("cuda")


@pytest.mark.parametrize("tensor_scale", [None, "row"])
def test_indexing(tensor_scale):
    x = torch.randn(5, 3, 8, 64)
    q = bs.quantize(x, bs.NVFP4, tensor_scale=tensor_scale)
    y = q.dequantize()
    for index in (
        2,
        -1,
        (1, 2),
        slice(1, 4),
        (slice(None), 1),
        (0, slice(0, 2)),
        (slice(None), slice(None), slice(2, 5)),
        (4, 2, slice(3, 8)),
        (..., slice(1, 2), slice(None)),
        (3, ...),
        torch.tensor([4, 0, 4]),
        (0, 0, slice(6, 2)),
        None,
        (None, 1),
        (2, None),
        (None, slice(1, 4), 0),
        (1, None, 2, slice(3, 8)),
        (..., slice(None), None, slice(1, 2), slice(None)),
    ):
        part = q[index]
        assert torch.equal(part.dequantize(), y[index]), index
        assert part.shape == y[index].shape


def test_slices_are_views_and_integer_tensors_copy():
    q = bs.quantize(torch.randn(4, 8, 64), bs.NVFP4)
    copied, storage = q[torch.tensor([1, 2])], q.codes.untyped_storage()
    assert copied.codes.untyped_storage().data_ptr() != storage.data_ptr()
    assert q[1].codes.data_ptr() == q.codes[1].data_ptr()
    assert q[1, 2:6].scale.data_ptr() == q.scale[1, 2:].data_ptr()


def test_blocked_scales_are_cut_at_128_rows():
    q = bs.quantize(torch.randn(300, 128), bs.NVFP4)
    blocked = q.pack("blocked")
    for rows in (slice(0, 128), slice(128, 256), slice(128, 300), slice(256, None), slice(None)):
        assert blocked[rows] == q[rows]
    odd = bs.quantize(torch.randn(300, 96), bs.NVFP4)  # six scale columns: a padded tile
    assert odd.pack("blocked")[128:256] == odd[128:256]
    for rows in (slice(0, 100), slice(64, 128), slice(1, None)):
        with pytest.raises(IndexError, match="granularity 128 of layout bits/blocked"):
            blocked[rows]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (0, r"rows are cut by slices, got 0: for one row use \[i : i \+ 1\]"),
        ((slice(None), slice(0, 8)), "columns 0:8:1 cut a block"),
        ((slice(None), 3), "k is cut by slices at whole blocks, got 3"),
        (slice(None, None, 2), "do not fall on the granularity 1"),
        ((slice(None), slice(None), slice(None)), "3 indices for a tensor of 2 dimensions"),
        ((slice(None), None, slice(None)), "new dimensions come before the rows"),
    ],
)
def test_bad_indices_are_refused(index, message):
    with pytest.raises(IndexError, match=message):
        bs.quantize(torch.randn(4, 64), bs.NVFP4)[index]


def test_experts_are_iterated_and_rows_are_not():
    q = bs.quantize(torch.randn(3, 4, 64), bs.NVFP4)
    assert [part == q[i] for i, part in enumerate(q)] == [True] * 3
    with pytest.raises(TypeError, match="rows of a QTensor are not iterated"):
        list(q[0])


def test_out_of_range_experts_are_refused():
    with pytest.raises(IndexError):
        bs.quantize(torch.randn(4, 2, 64), bs.NVFP4)[4]


def test_equality():
    x = torch.randn(4, 64)
    q = bs.quantize(x, bs.NVFP4)
    assert q == bs.quantize(x, bs.NVFP4)
    assert q != bs.quantize(-x, bs.NVFP4)
    assert q != bs.quantize(x, bs.MXFP4)
    assert q != bs.quantize(x[:2], bs.NVFP4)
    assert q != dataclasses.replace(q, tensor_scale=q.tensor_scale * 2)
    assert q != bs.quantize(x, bs.NVFP4, tensor_scale="row")
    assert q != "q"
    assert copy.deepcopy(q) == q


def test_codebooks_count_in_equality():
    q = bs.quantize(torch.randn(4, 64), bs.KBIT3)
    assert q != dataclasses.replace(q, codebook=q.codebook / 2)


def test_from_storage():
    q = bs.quantize(torch.randn(3, 4, 64), bs.KBIT5)
    again = bs.QTensor.from_storage(
        "kbit5", q.codes, q.scale, tensor_scale=q.tensor_scale, codebook=q.codebook
    )
    assert again == q
    assert bs.QTensor.from_storage(bs.KBIT5, q.codes, q.scale).tensor_scale.tolist() == [1.0] * 3
    with pytest.raises(ValueError, match=r"codes must be \[..., n, bytes\]"):
        bs.QTensor.from_storage("nvfp4", q.codes.flatten(), q.scale)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("codebook", torch.linspace(1, -1, 32), "values must ascend"),
        ("codebook", torch.full((32,), torch.nan), r"must lie in \[-1, 1\], got nan"),
        ("tensor_scale", torch.tensor([1.0, -2.0, 1.0]), "positive and finite, got -2.0"),
        ("tensor_scale", torch.full((3,), torch.inf), "positive and finite, got inf"),
    ],
)
def test_bad_numbers_in_a_file_are_refused(part, value, message):
    q = bs.quantize(torch.randn(3, 4, 64), bs.KBIT5)
    with pytest.raises(ValueError, match=message):
        bs.QTensor.from_storage(bs.KBIT5, q.codes, q.scale, **{part: value})


def test_codebooks_are_not_shared():
    """Not between tensors, nor with one made in inference mode or under fake tensors."""
    q = bs.quantize(torch.randn(4, 64), bs.KBIT4)
    with torch.inference_mode():
        bs.QTensor.from_storage(bs.KBIT4, q.codes, q.scale)
    a, b = (bs.QTensor.from_storage(bs.KBIT4, q.codes, q.scale) for _ in range(2))
    a.codebook.mul_(0)
    assert b == q
    x = torch.randn(2, 64, requires_grad=True)
    bs.matmul(x, b).sum().backward()
    assert x.grad.abs().sum() > 0
    with torch._subclasses.FakeTensorMode():
        bs.quantize(torch.empty(4, 64), bs.KBIT4)
    assert bs.quantize(q.dequantize(), bs.KBIT4).shape == (4, 64)


def test_float32_scales_may_be_misaligned():
    q = bs.quantize(torch.randn(4, 128), bs.BNB_NF4)
    mapped = torch.empty(q.scale.numel() + 1, dtype=torch.uint8)
    mapped[1:] = q.scale.flatten()
    again = bs.QTensor.from_storage(bs.BNB_NF4, q.codes, mapped[1:].view(q.scale.shape))
    assert torch.equal(again.dequantize(), q.dequantize())


def parts(**changes):
    q = bs.quantize(torch.randn(4, 64), bs.NVFP4)
    return {"format": q.format, "shape": q.shape, "codes": q.codes, "scale": q.scale,
            "tensor_scale": q.tensor_scale, "codebook": None, "layout": q.layout,
            **changes}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shape": (4, 65)}, ValueError, "needs k divisible by 16, got 65"),
        ({"shape": (64,)}, ValueError, r"shape must be \[..., n, k\]"),
        ({"shape": (-4, 64)}, ValueError, r"shape must be \[..., n, k\]"),
        ({"shape": (2**40, 2**24)}, ValueError, "more values than can be addressed"),
        ({"shape": (5, 64)}, ValueError, r"codes must have shape \[5, 32\] for \[5, 64\]"),
        ({"codes": torch.zeros(4, 32)}, TypeError, "codes must be torch.uint8, got torch.float32"),
        (
            {"scale": torch.zeros(4, 5, dtype=torch.uint8)},
            ValueError,
            r"scale must have shape \[4, 4\]",
        ),
        ({"tensor_scale": None}, ValueError, "tensor_scale is missing"),
        (
            {"tensor_scale": torch.ones(3)},
            ValueError,
            r"tensor_scale must have shape \[\] or \[4\]",
        ),
        ({"tensor_scale": torch.ones((), dtype=torch.float64)}, TypeError, "must be torch.float32"),
        ({"codebook": torch.zeros(16)}, ValueError, "codebook is not of this format"),
        ({"scale": torch.zeros(4, 4, dtype=torch.uint8, device="meta")}, ValueError, "on meta"),
    ],
)
def test_bad_parts_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        bs.QTensor(**parts(**changes))


def test_dequantize_refuses_other_dtypes():
    with pytest.raises(
        TypeError, match=r"must be float32, bfloat16 or float16, got torch\.float64"
    ):
        bs.quantize(torch.randn(2, 64), bs.NVFP4).dequantize(torch.float64)
