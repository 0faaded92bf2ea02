"""Cutting and putting together, in canonical bytes: the numbers are those of the whole, exactly."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import blockscale as bs
from bounds import branch_bound, cast_bound, roundings


def quantized(fmt, *lead, n=6, k=256):
    return bs.quantize(torch.randn(*lead, n, k), fmt)


def test_columns_are_cut_exactly(fmt):
    q = quantized(fmt, 2)
    for start, stop in ((0, 128), (128, 256), (128, 128)):
        part = q[..., start:stop]
        assert part.shape == (2, 6, stop - start)
        assert torch.equal(part.dequantize(), q.dequantize()[..., start:stop])
    assert q[..., 128:].codes.untyped_storage().data_ptr() == q.codes.untyped_storage().data_ptr()


def test_columns_rows_and_matrices_are_cut_at_once(fmt):
    q = quantized(fmt, 3)
    assert torch.equal(q[1, 2:5, 128:256].dequantize(), q.dequantize()[1, 2:5, 128:256])


def test_a_product_with_a_part_of_k_is_that_of_its_copy(fmt):
    part = quantized(fmt)[:, 128:256]
    x = torch.randn(3, 128)
    wanted = bs.matmul(x, part.clone())
    assert torch.equal(bs.matmul(x, part), wanted)
    assert part.prepare() == part
    assert torch.equal(bs.matmul(x, part.prepare()), bs.matmul(x, part.clone().prepare()))


def test_a_cut_inside_a_block_names_the_nearest_whole_one():
    q = quantized(bs.NVFP4)
    with pytest.raises(IndexError, match=r"8:40:1 cut a block of nvfp4.*16, such as 0:48"):
        q[..., 8:40]
    with pytest.raises(IndexError, match=r"multiples of 32, such as 0:32"):
        quantized(bs.KBIT4)[..., 16:32]
    with pytest.raises(IndexError, match="by slices"):
        q[..., 3]


def test_prepared_bytes_have_no_columns_to_cut():
    q = quantized(bs.NVFP4).pack("fragments/fragments")
    with pytest.raises(IndexError, match=r"layout fragments/fragments.*pack\('bits/rows'\)"):
        q[..., :128]
    assert q[..., :] == q


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_shards_make_up_the_whole(fmt, axis):
    q = quantized(fmt, 4, n=6)
    parts = [bs.shard(q, axis, rank, 2) for rank in range(2)]
    assert bs.cat(parts, axis) == q
    for part, numbers in zip(parts, q.dequantize().chunk(2, axis), strict=True):
        assert torch.equal(part.dequantize(), numbers)


def test_shards_of_rows_are_chunks_also_where_these_differ():
    q = quantized(bs.MXFP8, n=5)
    assert [bs.shard(q, 0, rank, 2).shape[0] for rank in range(2)] == [3, 2]


def test_what_cannot_be_shared_is_refused_with_what_can():
    with pytest.raises(ValueError, match=r"k=96 over 4 ranks is 24 columns.*use 3 ranks"):
        bs.shard(quantized(bs.MXFP4, k=96), -1, 0, 4)
    with pytest.raises(ValueError, match="8 ranks cannot share 6"):
        bs.shard(quantized(bs.MXFP4), 0, 0, 8)
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        bs.shard(quantized(bs.MXFP4), 0, 2, 2)
    with pytest.raises(IndexError, match="axis 2"):
        bs.shard(quantized(bs.MXFP4), 2, 0, 2)


def test_tensor_scales_per_row_follow_their_rows():
    q = bs.quantize(torch.randn(6, 64), bs.NVFP4, tensor_scale="row")
    assert bs.cat([q[:2], q[2:]]) == q
    one = quantized(bs.NVFP4, k=64)
    assert torch.equal(bs.cat([q, one])[6:].dequantize(), one.dequantize())
    with pytest.raises(ValueError, match="per row, and others one per matrix"):
        bs.cat([q, one], 1)


@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coded", [False, True], ids=["plain x", "coded x"])
@pytest.mark.parametrize("lead", [(), (2,)], ids=["matrix", "batch"])
def test_matrices_with_different_tensor_scales_are_one_product(format, dtype, coded, lead):
    """As q, k and v at once."""
    sizes = ((32, 1), (16, 2e4), (16, 3))
    parts = [bs.quantize(torch.randn(*lead, n, 64) * scale, format) for n, scale in sizes]
    whole, x, bias = bs.cat(parts), torch.randn(*lead, 5, 64).to(dtype), torch.randn(*lead, 64)
    assert torch.equal(whole.dequantize(), torch.cat([q.dequantize() for q in parts], -2))
    x = bs.quantize(x, bs.MXFP8) if coded else x
    rows, columns = (x.dequantize() if coded else x).double(), whole.dequantize().double()
    wanted = rows @ columns.mT + (bias[:, None] if lead else bias)
    x_dtype = torch.bfloat16 if coded else dtype
    bound = branch_bound(rows, columns, wanted, x_dtype=x_dtype) + cast_bound(wanted, dtype)
    for w in (whole, whole.prepare()):
        found = bs.linear(x, w, bias, out_dtype=dtype)
        assert found.dtype == dtype
        assert ((found.double() - wanted).abs() <= bound).all()
    assert "runs" in str(bs.explain(x, whole))


def test_tensor_scales_per_row_compile_as_one_graph():
    whole = bs.quantize(torch.randn(8, 64), bs.NVFP4, tensor_scale="row")
    x, bias = torch.randn(3, 64), torch.randn(8)
    compiled = torch.compile(bs.linear, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, whole, bias), bs.linear(x, whole, bias))


def test_gradients_pass_through_tensor_scales_per_row():
    whole = bs.quantize(torch.randn(8, 64), bs.NVFP4, tensor_scale="row")
    x = torch.randn(3, 64, requires_grad=True)
    bs.matmul(x, whole).sum().backward()
    wanted = whole.dequantize().sum(0).expand(3, 64)
    mass = whole.dequantize().abs().sum(0)
    assert ((x.grad - wanted).abs() <= roundings(2 * (8 + 8), mass)).all()


def test_tensor_scales_per_row_train_after_a_call_in_inference_mode():
    whole = bs.quantize(torch.randn(8, 64), bs.NVFP4, tensor_scale="row")
    x, twin = (torch.ones(3, 64, requires_grad=True) for _ in range(2))
    with torch.inference_mode():
        bs.matmul(x, whole)
    bs.matmul(x, whole).sum().backward()
    bs.matmul(twin, whole.clone()).sum().backward()
    assert torch.equal(x.grad, twin.grad)


@pytest.mark.parametrize("out_dtype", [None, torch.float16])
def test_what_is_explained_of_tensor_scales_per_row_is_what_runs(out_dtype):
    """A kernel's product in float32: tuned for another one, it would not be found."""
    whole = bs.quantize(torch.randn(8, 64), bs.NVFP4, tensor_scale="row").prepare()
    x = torch.randn(3, 64).bfloat16()
    bs.linear(x, whole, torch.randn(8).bfloat16(), out_dtype=out_dtype)
    (plan,) = whole.plans.values()
    assert bs.explain(x, whole, out_dtype=out_dtype).problem == plan.product.problem
    tuned = bs.tune(x, whole, out_dtype=out_dtype, store=False)
    assert tuned.problem == plan.product.problem


def test_parts_of_no_tensor_are_refused():
    a, b = quantized(bs.NVFP4), bs.quantize(torch.randn(6, 256) * 3, bs.NVFP4)
    with pytest.raises(ValueError, match=r"different tensor scales .* one tensor_scale="):
        bs.cat([a, b], 1)
    experts = [bs.quantize(torch.randn(2, 6, 256) * scale, bs.NVFP4) for scale in (1, 3)]
    assert torch.equal(bs.cat(experts, 0)[2:].dequantize(), experts[1].dequantize())
    table = [value / 2 for value in bs.KBIT4.codebook]
    mine = bs.quantize(torch.randn(6, 256), bs.KBIT4.replace(codebook=table))
    with pytest.raises(ValueError, match="different codebooks"):
        bs.cat([bs.quantize(torch.randn(6, 256), bs.KBIT4), mine])
    with pytest.raises(ValueError, match="tensor 0 is nvfp4 and tensor 1 is mxfp4"):
        bs.cat([a, quantized(bs.MXFP4)])
    with pytest.raises(ValueError, match=r"\[6, 256\] and tensor 1 is \[6, 128\]"):
        bs.cat([a, a[:, :128]])
    with pytest.raises(ValueError, match=r"tensor 1 is in layout .*pack\('bits/rows'\)"):
        bs.cat([a, a.pack("blocked")])
    with pytest.raises(ValueError, match="nothing"):
        bs.cat([])


def test_parts_by_role_make_the_tensor_again(fmt):
    q = quantized(fmt, 2)
    assert tuple(q.parts) == fmt.roles
    assert bs.QTensor.from_parts(fmt, q.parts) == q
    with pytest.raises(ValueError, match=r"is stored in codes, scale.*, got codes"):
        bs.QTensor.from_parts(fmt, {"codes": q.codes})
    assert q.dtype == torch.uint8


def test_a_fake_call_leaves_nothing_fake_on_a_weight():
    w = bs.cat([bs.quantize(torch.randn(16, 64) * size, bs.NVFP4) for size in (1, 9)])
    x = torch.randn(3, 64)
    with FakeTensorMode(allow_non_fake_inputs=True):
        bs.matmul(x, w)
    assert type(bs.matmul(x, w)) is torch.Tensor
