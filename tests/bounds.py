"""How far a kernel may be from the definition: computed from the format, k and the accumulator.

The definition sums x * decode * scale in float64. A kernel may round each decoded weight (with or
without its block scale) once to x's dtype and sum in float32, in any order; the tensor scale, the
bias and the activation are float32; the result is cast once.
"""

import torch

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def matmul_bound(x, w, y, *, x_dtype, out_dtype, scale=1.0):
    """x [m, k], w [n, k] (decode * scale), exact y [m, n], all float64; scale: tensor scales."""
    k = x.shape[-1]
    mass = (x.abs() @ w.abs().mT) * scale
    weight_rounding = UNIT[x_dtype] * mass
    summation = (k + 8) * 2.0**-24 * mass
    epilogue = 4 * 2.0**-24 * y.abs()
    cast = 2 * UNIT[out_dtype] * y.abs() + torch.finfo(out_dtype).smallest_normal * 2.0**-8
    return weight_rounding + summation + epilogue + cast
