"""Weights decoded on a GPU, for kernels that leave the product to torch's library.

What is multiplied has the dtype of the plain operand (x, or the gradient of y). A weight is rounded
to it once, sums are float32.

float32 is multiplied as float64. Whether torch multiplies float32 by TF32 is a setting of the whole
process, which another thread may change at any time; TF32 cannot enter a product of float64. On
A100, H100 and B200 that costs little, since their float64 tensor cores are as fast as float32; on
GPUs without them it is up to 64 times slower. bfloat16 and float16 are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from blockscale.formats import Format
from blockscale.kernels.contract import Parts
from blockscale.kernels.cuda.formats import fits_bfloat16
from blockscale.kernels.dequantize import cuda, cuda_fragments
from blockscale.problem import Kind, Problem, dtype_name, dtype_named
from blockscale.runtime.cuda import Build

# Of decoded weights. A matrix of 14336 x 4096 in bfloat16 has 112 MiB and is decoded and multiplied
# at once, whatever a model of 8 to 30 billion weights has; and beside the weights and activations
# of a larger one, a quarter of a GiB is little.
SCRATCH_BYTES = 256 << 20
MOST_MATRICES = 1 << 15  # decoded by one launch: a grid counts to 2^16
_LARGEST_FLOAT16 = 65504.0
_FLOAT16_LIFT = 256.0
_TILE = 128 * 256  # sums that an SM has at a time, in the largest tiles that cuBLAS takes


def unreadable(kind: Kind) -> str | None:
    """Why weights of this kind cannot be decoded."""
    canonical = kind.layout.codes in ("bits", "planes") and kind.layout.scales in (
        "rows",
        "blocked",
    )
    if canonical or kind.layout.scales == "fragments":
        return None
    return f"cannot decode {kind}"


def multiplied_dtype(problem: Problem) -> torch.dtype:
    """float16 has no room for every weight of some formats, nor bfloat16 for every quantised x."""
    if "@" in problem.x:
        return torch.bfloat16 if fits_bfloat16(problem.x_kind.format) else torch.float32
    cramped = problem.x == "float16" and not _fits_float16(problem.w_kind.format)
    return torch.float32 if cramped else dtype_named(problem.x)


def _fits_float16(format: Format) -> bool:
    """Whether there is room for the largest weight, lifted where it will be."""
    if format.scale.bits == 32 or format.scale.power_of_two:
        return False
    lift = _FLOAT16_LIFT if format.is_codebook else 1.0
    return format.element.max * format.scale.max * lift <= _LARGEST_FLOAT16


def lift_of(problem: Problem) -> float:
    """Brings products of a codebook and its scales to where float16 has all its bits."""
    lifted = multiplied_dtype(problem) == torch.float16 and problem.w_kind.format.is_codebook
    return _FLOAT16_LIFT if lifted else 1.0


def folds_tensor_scale(problem: Problem) -> bool:
    """Whether decoded weights have their tensor scale in them. Entries of a codebook times their
    scales are rounded to bfloat16 in any case, and bfloat16 has the exponents of float32: the
    tensor scale costs no second rounding. Floats times their scales are exact without it."""
    format = problem.w_kind.format
    is_bfloat16 = multiplied_dtype(problem) == torch.bfloat16
    return is_bfloat16 and format.has_tensor_scale and format.is_codebook


def _fills_gpu(problem: Problem, results: int) -> bool:
    """Whether a product with so many results has a tile for every SM, so that cuBLAS does not split
    its sums. It may round the parts of split sums to the dtype of the output, bfloat16 or float16:
    another setting of the whole process. Smaller products are written as float32."""
    return results >= problem.device.sms * _TILE


def torch_writes(problem: Problem, results: int) -> bool:
    """Whether torch's product may write so many results itself, where they are sums: sums are
    rounded once however torch computes them."""
    dtype, out = multiplied_dtype(problem), dtype_named(problem.out)
    if torch.float32 in (dtype, out):
        return True
    return out == dtype and _fills_gpu(problem, results)


def rows_of_scratch(problem: Problem) -> int:
    """Rows of weights that may be decoded at a time; whole tiles of every layout."""
    dtype = multiplied_dtype(problem)
    size = dtype.itemsize + (torch.float64.itemsize if dtype == torch.float32 else 0)
    return max(SCRATCH_BYTES // (size * max(problem.k, 1)) // 128 * 128, 128)


def decoder(problem: Problem, rows: int, scaled: bool | None = None) -> Build:
    """What `decode_rows` loads for so many rows; scaled: they are multiplied by something, and not
    only where `scale_decoded` says so."""
    name = dtype_name(multiplied_dtype(problem))
    if problem.w_kind.layout.scales == "fragments":
        return cuda_fragments.decoder(problem.w, name)
    if scaled is None:
        scaled = folds_tensor_scale(problem) or lift_of(problem) != 1.0
    return cuda.decoder(problem.w, name, scaled, rows * problem.k)


def scale_decoded(problem: Problem, part: Parts) -> Tensor | None:  # float32 [groups]
    """What weights are multiplied by before they are rounded."""
    if folds_tensor_scale(problem):
        return part.tensor_scale
    lift = lift_of(problem)
    return None if lift == 1.0 else torch.full((len(part.codes),), lift, device=part.codes.device)


def decode_rows(
    kind: Kind,
    parts: Parts,  # [groups, n, k]
    rows: slice,
    shape: tuple[int, int],  # n, k
    dtype: torch.dtype,
    scale: Tensor | None = None,  # float32 [groups], of all weights of a matrix
) -> Tensor:  # [groups, height, k]
    """decode * block scale * scale of some rows, rounded once."""
    height, groups = rows.stop - rows.start, len(parts.codes)
    out = torch.empty(groups, height, shape[1], dtype=dtype, device=parts.codes.device)
    codes, scales = parts.codes, parts.scale
    if height < shape[0]:
        codes, scales = kind.layout.slice_rows(codes, scales, kind.format, shape, rows)
    each = None if scale is None else scale[:, None].expand(groups, height)
    reader = cuda_fragments if kind.layout.scales == "fragments" else cuda
    reader.decode(str(kind), Parts(codes, scales, each, parts.codebook), out)
    return out


class WholeDecoder:
    """`decode_rows` of all rows, again and again. From fragments it needs the addresses of the
    parts alone, which whoever calls keeps alive."""

    def __init__(
        self,
        kind: Kind,
        parts: Parts,  # [groups, n, k]
        shape: tuple[int, int],
        dtype: torch.dtype,
        scale: Tensor | None = None,  # float32 [groups]; kept
    ) -> None:
        self._scale = scale
        self._fresh: Callable[[], Tensor]
        if kind.layout.scales == "fragments":
            groups, n = len(parts.codes), shape[0]
            each = None if scale is None else scale[:, None].expand(groups, n)
            scaled = Parts(parts.codes, parts.scale, each, parts.codebook)
            decoding = cuda_fragments.Decoding(str(kind), scaled, (groups, *shape), dtype)
            self.holds_weights, self._fresh = decoding.copies_weights, decoding.fresh
        else:
            every = slice(0, shape[0])
            self.holds_weights = True
            self._fresh = partial(decode_rows, kind, parts, every, shape, dtype, scale)

    def __call__(self) -> Tensor:  # [groups, n, k]
        return self._fresh()


def product(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """x @ w of matrices, or of [groups, ...] of them, with sums in float32, into `out` (float32, or
    of x's dtype) or into new float32. TF32 never enters, and no setting of torch is touched."""
    if x.dim() == 2:
        return _product(torch.mm, x, w, out)
    if len(x) == 1:
        return _product(torch.mm, x[0], w[0], None if out is None else out[0])[None]
    return _product(torch.bmm, x, w, out)


def _product(multiply: Callable[..., Tensor], x: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
    if x.dtype == torch.float32:
        wide = multiply(x.double(), w.double())
        return wide.float() if out is None else out.copy_(wide)
    if out is None:
        return multiply(x, w, out_dtype=torch.float32)
    if out.dtype == x.dtype:
        return multiply(x, w, out=out)
    return multiply(x, w, out_dtype=torch.float32, out=out)
