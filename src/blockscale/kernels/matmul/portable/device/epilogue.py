"""Sums to results: tensor scales, bias and activation, all in float32."""

import triton
import triton.language as tl


@triton.jit
def branch(sums, weight, x_scale, group, column, inside, row, there, n):
    """One linear map. sums: [columns, rows]; weight: (codes, scale, tensor_scale, table, bias)."""
    _, _, tensor_scale, _, bias = weight
    if x_scale is not None:
        sums = sums * tl.load(x_scale + row, mask=there, other=0.0)[None, :]
    if tensor_scale is not None:
        sums = sums * tl.load(tensor_scale + group)
    if bias is not None:
        place = group.to(tl.int64) * n + column
        sums = sums + tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)[:, None]
    return sums


@triton.jit
def gated(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """act(gate) * up."""
    if ACTIVATION == "swiglu_oai":
        # What is not below the limit may be NaN, which stays.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        value = gate * tl.sigmoid(alpha * gate) * (up + 1)
    elif ACTIVATION == "silu":
        value = gate * tl.sigmoid(gate) * up
    elif ACTIVATION == "gelu_tanh":
        inner = gate + 0.044715 * gate * gate * gate
        value = gate * tl.sigmoid(1.5957691216057308 * inner) * up  # sqrt(8 / pi)
    else:
        tl.static_assert(ACTIVATION == "gelu", "an activation that is not known")
        value = gate * (0.5 + 0.5 * tl.math.erf(gate * 0.7071067811865476)) * up
    return value
