"""Products with quantised weights: plain, batched, gated, grouped by expert.

The verbs differ in their epilogue (gated or not) and in how rows find their weights (one matrix,
one per batch, one per ragged group); both are facts of the Problem. So a kernel serves them all:

    weights      Parts of [groups, n, k]: one, or gate and up

and launches are called with (x, biases, group_sizes, out):

    x            [rows, k]: a Tensor, or Parts where it is quantised
    biases       as many, each [groups, n] or None
    group_sizes  integers [groups] on x's device where the problem is ragged, else None
    out          [rows, n]
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.matmul import (
    cpu,
    cublas,
    portable,
    reference,
    scaled_mm,
    sm90_gemm,
    sm100_gemm,
    sm100_mixed_gemm,
    sm120_gemm,
    stream,
)

KERNELS: tuple[Kernel, ...] = (
    cpu,
    stream,
    sm90_gemm,
    sm100_gemm,
    sm100_mixed_gemm,
    sm120_gemm,
    scaled_mm,
    portable,
    cublas,
    reference,
)
