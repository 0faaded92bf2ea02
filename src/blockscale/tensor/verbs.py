"""Products with quantised weights, and why they run as they do."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format
from blockscale.numerics import Activation
from blockscale.tensor.call import describe_call
from blockscale.tensor.plan_cache import replay_call
from blockscale.tensor.qtensor import QTensor
from blockscale.tensor.row_scales import has_row_scales, unscaled_call, without_row_scales
from blockscale.tensor.run import run


def matmul(
    x: Tensor | QTensor,
    w: QTensor,
    x_format: Format | str | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    x_tensor_scale: float | Tensor | None = None,
) -> Tensor:
    """x @ w.T: x [..., k] with w [n, k], or x [l, m, k] with w [l, n, k].

    x_format        None: the weights alone are quantised. A Format: x is quantised on the fly, with
                    one tensor scale per row or the given `x_tensor_scale`
    out_dtype       x's by default; bfloat16 where x is a QTensor
    """
    if x_format is None and x_tensor_scale is None and out_dtype is None:
        y = replay_call(x, w, None)
        if y is not None:
            return y
    return run(
        x, [w], [None], x_format=x_format, x_tensor_scale=x_tensor_scale, out_dtype=out_dtype
    )


def linear(
    x: Tensor | QTensor,
    w: QTensor,
    bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x @ w.T + bias; bias [n], or [l, n] for a batch of weights."""
    if x_format is None and x_tensor_scale is None and out_dtype is None:
        y = replay_call(x, w, bias)
        if y is not None:
            return y
    return run(
        x, [w], [bias], x_format=x_format, x_tensor_scale=x_tensor_scale, out_dtype=out_dtype
    )


def gated_matmul(
    x: Tensor | QTensor,
    gate: QTensor,
    up: QTensor,
    activation: str | Activation = "silu",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """act(x @ gate.T + gate_bias) * (x @ up.T + up_bias), in one pass over x.

    activation: "silu", "gelu", "gelu_tanh" or `swiglu_oai(alpha, limit)`.
    """
    if x_format is None and x_tensor_scale is None and out_dtype is None and up is not None:
        y = replay_call(x, gate, gate_bias, up_bias, None, up, activation)
        if y is not None:
            return y
    return run(
        x,
        [gate, up],
        [gate_bias, up_bias],
        activation=activation,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )


def grouped_matmul(
    x: Tensor | QTensor,
    experts: QTensor,
    group_sizes: Tensor,
    bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Rows of x [m, k], sorted by expert, each times its expert's matrix: experts [e, n, k].

    group_sizes: int32 or int64 [e]. Rows past their sum come out as zeros. A sum above m is an
    error for CPU tensors and is clipped on the GPU.
    """
    group_sizes = _present(group_sizes)
    if x_format is None and x_tensor_scale is None and out_dtype is None:
        y = replay_call(x, experts, bias, None, group_sizes)
        if y is not None:
            return y
    return run(
        x,
        [experts],
        [bias],
        group_sizes=group_sizes,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )


def grouped_gated_matmul(
    x: Tensor | QTensor,
    gate: QTensor,
    up: QTensor,
    group_sizes: Tensor,
    activation: str | Activation = "silu",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    *,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`gated_matmul` of each row with its expert's gate and up [e, n, k]; see `grouped_matmul`."""
    group_sizes = _present(group_sizes)
    if x_format is None and x_tensor_scale is None and out_dtype is None and up is not None:
        y = replay_call(x, gate, gate_bias, up_bias, group_sizes, up, activation)
        if y is not None:
            return y
    return run(
        x,
        [gate, up],
        [gate_bias, up_bias],
        group_sizes=group_sizes,
        activation=activation,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )


def explain(
    x: Tensor | QTensor,
    w: QTensor,
    up: QTensor | None = None,
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation = "silu",
    x_format: Format | str | None = None,
    out_dtype: torch.dtype | None = None,
) -> ops.Explanation:
    """Which kernel runs for x and w, why each other one does not, and the least it can cost.

    With `up` it explains `gated_matmul`, with `group_sizes` the grouped verbs.
    """
    call = _checked_call(x, w, up, group_sizes, activation, x_format, out_dtype)
    problem = call.problem()
    copied = ops.why_copied(call, ops.choose(problem))
    symmetric = all(_is_symmetric(each) for each in (w, up) if each is not None)
    return ops.explain(problem, call.x.device, copied, symmetric=symmetric)


def _is_symmetric(w: QTensor) -> bool:
    """Whether kernels may count on it: a codebook that is not frozen can become any."""
    table = w.codebook
    return table is None or (w.frozen and torch.equal(table, -table.flip(0)))


def tune(
    x: Tensor | QTensor,
    w: QTensor,
    up: QTensor | None = None,
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation = "silu",
    x_format: Format | str | None = None,
    out_dtype: torch.dtype | None = None,
    store: bool = True,
) -> ops.Tuning:
    """Time every way to multiply x and w on this device, and keep the result: calls like it take
    the fastest from then on, in this process and in later ones.

    Takes what `explain` takes. Shapes, formats, dtypes and the sizes of groups count, other values
    do not: it is measured on random operands. A result serves the same number of rows only, with
    and without a bias, and however they fall on groups: give sizes that are usual. With
    `store=False` nothing is kept, and nothing changes.
    """
    call = _checked_call(x, w, up, group_sizes, activation, x_format, out_dtype)
    return ops.tune(call.problem(), call.x.device, group_sizes=group_sizes, store=store)


def _checked_call(
    x: Tensor | QTensor,
    w: QTensor,
    up: QTensor | None,
    group_sizes: Tensor | None,
    activation: str | Activation,
    x_format: Format | str | None,
    out_dtype: torch.dtype | None,
) -> ops.MatmulCall:
    """What `explain` and `tune` are asked about.

    Of a weight with tensor scales per row it is the product that a kernel makes, in float32.
    """
    is_row_scaled = (
        up is None and group_sizes is None and isinstance(w, QTensor) and has_row_scales(w)
    )
    weight = without_row_scales(w) if is_row_scaled else w
    call = describe_call(
        x,
        [weight] if up is None else [weight, up],
        [None] if up is None else [None, None],
        group_sizes=group_sizes,
        activation=None if up is None else activation,
        x_format=x_format,
        out_dtype=out_dtype,
    )
    call.validate()
    return unscaled_call(call) if is_row_scaled else call


def _present(group_sizes: Tensor) -> Tensor:
    if group_sizes is None:
        raise TypeError("group_sizes is None: a grouped product needs the rows of each expert")
    return group_sizes
