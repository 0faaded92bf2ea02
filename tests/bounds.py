"""How far a kernel may be from the definition: computed from the format, k and the accumulator.

The definition sums x * decode * scale in float64. A kernel may round each decoded weight (with or
without its block scale) once to x's dtype and sum in float32, in any order; the tensor scale, the
bias and the activation are float32; the result is cast once.
"""

import torch

# Half a unit in the last place, relative: the most that one rounding changes.
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# |act(a) - act(b)| <= 1.2 |a - b| for every activation: the steepest slope of silu is 1.0999, of
# gelu 1.1290; g * sigmoid(alpha g) is a scaled silu.
STEEPEST = 1.2


def branch_bound(x, w, y, *, x_dtype, bias=None, roundings=1):
    """Of a float32 branch. x [m, k], w [n, k] with all scales, and the exact y, all float64.

    Weights are rounded to x's dtype `roundings` times."""
    mass = x.abs() @ w.abs().mT
    weights = ((1 + UNIT[x_dtype]) ** roundings - 1) * mass
    summation = (x.shape[-1] + 8) * 2.0**-24 * mass
    epilogue = 4 * 2.0**-24 * (y.abs() + (0 if bias is None else bias.double().abs()))
    return weights + summation + epilogue


def cast_bound(y, dtype):
    """One rounding to `dtype` of something that is already off by a little."""
    return 1.01 * UNIT[dtype] * y.abs() + torch.finfo(dtype).smallest_normal * 2.0**-7


def gated_bound(gate, up, y, gate_bound, up_bound, dtype):
    """act(gate) * up, where `up` has its clamp and its + 1 already."""
    moved = STEEPEST * gate_bound * (up.abs() + up_bound) + STEEPEST * gate.abs() * up_bound
    return moved + 16 * 2.0**-24 * (STEEPEST * gate.abs() * up.abs()) + cast_bound(y, dtype)


def roundings(count, magnitude):
    """So many float32 roundings of terms of this size."""
    return count * 2.0**-24 * magnitude
