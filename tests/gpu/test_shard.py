"""Parts of weights, and rows with tensor scales of their own, on a GPU."""

import pytest
import torch

import blockscale as bs
from bounds import branch_bound, cast_bound

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("format", [bs.NVFP4, bs.MXFP8, bs.KBIT4], ids=str)
@pytest.mark.parametrize("m", [1, 16, 300])
def test_a_part_of_k_multiplies_as_its_copy_does(format, m):
    q = bs.quantize(torch.randn(192, 512, device="cuda"), format)
    part, x = q[:, 128:384], torch.randn(m, 256, device="cuda", dtype=torch.bfloat16)
    copy = part.clone()
    assert torch.equal(part.dequantize(), q.dequantize()[:, 128:384])
    assert torch.equal(bs.matmul(x, part), bs.matmul(x, copy))
    assert torch.equal(bs.matmul(x, part.prepare()), bs.matmul(x, copy.prepare()))
    assert bs.cat([bs.shard(q, 1, rank, 2) for rank in range(2)], 1) == q


@pytest.mark.parametrize("format", [bs.NVFP4, bs.KBIT4], ids=str)
@pytest.mark.parametrize("m", [1, 16, 300])
def test_matrices_with_different_tensor_scales_are_one_product(format, m):
    sizes = ((128, 1.0), (64, 2e4), (64, 3.0))
    parts = [bs.quantize(torch.randn(n, 256, device="cuda") * s, format) for n, s in sizes]
    whole, bias = bs.cat(parts), torch.randn(256, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(m, 256, device="cuda", dtype=torch.bfloat16)
    rows, columns = x.double(), whole.dequantize().double()
    wanted = rows @ columns.T + bias.double()
    bound = branch_bound(rows, columns, wanted, x_dtype=x.dtype, bias=bias)
    for w in (whole, whole.prepare()):
        found = bs.linear(x, w, bias)
        assert ((found.double() - wanted).abs() <= bound + cast_bound(wanted, x.dtype)).all()
