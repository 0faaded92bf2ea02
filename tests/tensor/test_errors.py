"""Bad input: one clear error that names the argument, the numbers and the nearest fix."""

import pytest
import torch

import blockscale as bs


def nv(*shape):
    return bs.quantize(torch.randn(*shape), bs.NVFP4)


W, X, EXPERTS = nv(8, 64), torch.randn(5, 64), nv(3, 8, 64)
BY_ROW = bs.quantize(torch.randn(8, 64), bs.NVFP4, tensor_scale="row")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bs.quantize([[1.0]], bs.NVFP4), TypeError, "x must be a Tensor, got list"),
        (lambda: bs.quantize(X.double(), bs.NVFP4), TypeError, (r"x must be float32, bfloat16 or "
         r"float16, got torch.float64: cast it first, as in x.float\(\)")),
        (lambda: bs.quantize(X.int(), bs.NVFP4), TypeError, "got torch.int32"),
        (lambda: bs.quantize(X[0], bs.NVFP4), ValueError,
         r"got shape \(64,\): for a vector use x\[None\]"),
        (lambda: bs.quantize(torch.randn(2, 4100), bs.NVFP4), ValueError,
         "nvfp4 needs x's last dimension divisible by 16, got 4100: pad it or keep this layer"),
        (lambda: bs.quantize(torch.randn(2, 0), bs.NVFP4), ValueError, "divisible by 16, got 0"),
        (lambda: bs.quantize(X, "nvpf4"), ValueError, "did you mean 'nvfp4'"),
        (lambda: bs.quantize(torch.randn(2, 48), bs.KBIT4.replace(block=16)), ValueError,
         "needs k divisible by 32, got 48"),
        (lambda: bs.matmul(torch.randn(2, 4100), W), ValueError,
         "matmul: x has k=4100 but w has k=64"),
        (lambda: bs.matmul(torch.tensor(1.0), W), ValueError, "x has k=0 but w has k=64"),
        (lambda: bs.matmul(X[:, :0], W[:, :0]), ValueError,
         "needs w's last dimension divisible by 16, got 0: pad it or keep this layer"),
        (lambda: bs.matmul(X, torch.randn(8, 64)), TypeError,
         r"weights must be QTensors, got Tensor: bs.quantize\(w, format\)"),
        (lambda: bs.matmul([1.0], W), TypeError, "x must be a Tensor or a QTensor, got list"),
        (lambda: bs.matmul(X.double(), W), TypeError, "matmul: x must be float32"),
        (lambda: bs.matmul(X, W, out_dtype=torch.int8), TypeError, "out_dtype must be float32"),
        (lambda: bs.matmul(X, EXPERTS), ValueError,
         r"w is a batch of 3 matrices, so x must be \[3, m, 64\], got \(5, 64\)"),
        (lambda: bs.matmul(torch.randn(2, 4, 64), EXPERTS), ValueError, "batch of 3 matrices"),
        (lambda: bs.matmul(X, nv(2, 2, 8, 64)), ValueError, r"w must be \[n, k\] or \[l, n, k\]"),
        (lambda: bs.matmul(bs.quantize(X, bs.NVFP4).pack("blocked"), W), ValueError,
         r"x is packed as bits/blocked; .* x.pack\('bits/rows'\)"),
        (lambda: bs.matmul(bs.quantize(X, bs.NVFP4), W, x_format=bs.NVFP4), ValueError,
         "x is quantised already"),
        (lambda: bs.matmul(torch.randn(2, 48), nv(8, 48), x_format=bs.MXFP8), ValueError,
         "mxfp8 needs x's last dimension divisible by 32, got 48"),
        (lambda: bs.matmul(X, W, x_tensor_scale=1.0), ValueError,
         "x_tensor_scale needs an x_format with a tensor scale"),
        (lambda: bs.matmul(X, W, x_format=bs.MXFP8, x_tensor_scale=1.0), ValueError,
         "x_tensor_scale needs an x_format with a tensor scale"),
        (lambda: bs.matmul(X, W, x_format=bs.NVFP4, x_tensor_scale=0.0), ValueError,
         "x_tensor_scale must be positive and finite, got 0.0"),
        (lambda: bs.matmul(X, W, x_format=bs.NVFP4, x_tensor_scale=float("nan")), ValueError,
         "x_tensor_scale must be positive and finite, got nan"),
        (lambda: bs.matmul(X, W, x_format=bs.NVFP4, x_tensor_scale=torch.ones(2)), ValueError,
         r"one float32 number or one per row \[5\], got torch.float32 \[2\]"),
        (lambda: bs.matmul(X, W, x_format=bs.NVFP4, x_tensor_scale="row"), TypeError,
         "must be a number or a Tensor, got 'row'"),
        (lambda: bs.matmul(X, W, x_format=bs.NVFP4, x_tensor_scale=torch.ones((), device="meta")),
         ValueError, "x is on cpu but x_tensor_scale is on meta"),
        (lambda: bs.matmul(X, W, out_dtype="bfloat16"), TypeError,
         "out_dtype must be a torch.dtype"),
        (lambda: bs.linear(X, W, [0.0] * 8), TypeError, "bias must be a Tensor, got list"),
        (lambda: bs.gated_matmul(X, W, W, None), TypeError, "activation must be a name or"),
        (lambda: bs.gated_matmul(X, W, W, ""), TypeError, "activation must be a name or"),
        (lambda: bs.gated_matmul(X[:0], W, W, "relu"), ValueError, "unknown activation 'relu'"),
        (lambda: bs.gated_matmul(X, W, W, "swiglu_oai(a,b)"), ValueError, "unknown activation"),
        (lambda: bs.explain(X, W, nv(9, 64)), ValueError, "gate and up must be alike"),
        (lambda: bs.grouped_matmul(X, EXPERTS, None), TypeError, "group_sizes is None"),
        (lambda: bs.grouped_matmul(X, EXPERTS, [1, 2, 2]), TypeError,
         "group_sizes must be a Tensor, got list"),
        (lambda: bs.grouped_matmul(X, EXPERTS, torch.ones(3, dtype=torch.int64, device="meta")),
         ValueError, "x is on cpu but group_sizes is on meta"),
        (lambda: bs.fit_codebook([1.0], 4), TypeError, "samples must be a Tensor"),
        (lambda: W.pack(bs.layouts.Layout("foo", "rows")), ValueError, "unknown layout foo/rows"),
        (lambda: bs.gated_matmul(X, BY_ROW, BY_ROW),
         ValueError, "has one tensor scale per row, which bs.matmul and bs.linear take"),
        (lambda: bs.matmul(X.to("meta"), W), ValueError, "x is on meta but w is on cpu: move one"),
        (lambda: bs.linear(X, W, torch.randn(9)), ValueError,
         r"bias must have shape \(8,\), got \(9,\)"),
        (lambda: bs.linear(X, W, torch.ones(8, dtype=torch.int32)), TypeError,
         "bias must be float32"),
        (lambda: bs.linear(torch.randn(3, 5, 64), EXPERTS, torch.randn(8)), ValueError,
         r"bias must have shape \(3, 8\)"),
        (lambda: bs.gated_matmul(X, W, nv(9, 64)), ValueError, "gate and up must be alike"),
        (lambda: bs.gated_matmul(X, W, bs.quantize(torch.randn(8, 64), bs.MXFP4)), ValueError,
         "gate and up must be alike"),
        (lambda: bs.gated_matmul(X, W, W, "relu"), ValueError,
         "unknown activation 'relu': use one of silu, gelu, gelu_tanh, swiglu_oai"),
        (lambda: bs.gated_matmul(X, W, W, up_bias=torch.randn(3)), ValueError,
         "up_bias must have shape"),
        (lambda: bs.swiglu_oai(limit=0.0), ValueError, "positive limit, got 1.702 and 0.0"),
        (lambda: bs.grouped_matmul(X, W, torch.tensor([5])), ValueError,
         r"experts must be \[e, n, k\], got \(8, 64\); for one matrix use matmul"),
        (lambda: bs.grouped_matmul(X[None], EXPERTS, torch.tensor([1, 2, 2])), ValueError,
         r"x must be \[m, k\], rows sorted by expert"),
        (lambda: bs.grouped_matmul(X, EXPERTS, torch.tensor([1, 2])), ValueError,
         r"one entry for each of the 3 experts, got shape \(2,\)"),
        (lambda: bs.grouped_matmul(X, EXPERTS, torch.tensor([1.0, 2.0, 2.0])), TypeError,
         "group_sizes must be int32 or int64, got torch.float32"),
        (lambda: bs.grouped_matmul(X, EXPERTS, torch.tensor([1, 2, 3])), ValueError,
         "group_sizes sum to 6 but x has 5 rows"),
        (lambda: bs.grouped_matmul(X, EXPERTS, torch.tensor([1, -2, 3])), ValueError,
         r"group_sizes\[1\] is negative: -2"),
        (lambda: bs.grouped_gated_matmul(X, EXPERTS, EXPERTS, torch.tensor([9, 0, 0])), ValueError,
         "grouped_gated_matmul: group_sizes sum to 9"),
        (lambda: bs.explain(X, torch.randn(8, 64)), TypeError, "weights must be QTensors"),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
