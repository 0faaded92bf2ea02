"""Which way a call takes: by its plan, by a kernel that is chosen for it, or by the verb's op."""

from __future__ import annotations

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format
from blockscale.numerics import Activation
from blockscale.tensor.call import describe_call
from blockscale.tensor.plan_cache import cached_plan, keep_new_plan
from blockscale.tensor.qtensor import QTensor
from blockscale.tensor.row_scales import has_row_scales, scale_rows, without_row_scales

_keeps_replays = ops.run_replay is not None  # asked at every call, so found once


def run(
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    *,
    group_sizes: Tensor | None = None,
    activation: str | Activation | None = None,
    x_format: Format | str | None = None,
    x_tensor_scale: float | Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Without a plan the call is checked; the op is for where somebody watches."""
    key = None
    # int8 alone is left to kernels, which may have a plan for it.
    if x_format in (None, "int8") and x_tensor_scale is None:
        key, plan = cached_plan(x, weights, biases, group_sizes, activation, x_format, out_dtype)
        if plan is not None:
            planned = plan(x if isinstance(x, Tensor) else x.operand, tuple(biases), group_sizes)
            if _keeps_replays and not (x_format or out_dtype) and isinstance(x, Tensor):
                up = weights[1] if len(weights) > 1 else None
                calls = weights[0].replays
                ops.keep_replay(calls, key, plan, x, biases, group_sizes, up, activation)
            return planned
    if len(weights) == 1 and group_sizes is None and _has_row_scales(weights[0]):
        return _run_row_scaled(x, weights[0], biases[0], x_format, x_tensor_scale, out_dtype)
    call = describe_call(
        x,
        weights,
        biases,
        group_sizes=group_sizes,
        activation=activation,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )
    if not ops.can_skip_dispatcher(call.tensors):
        return _run_op(call)
    plan = None if key is None else keep_new_plan(key, call, weights)
    if plan is not None:
        return plan(x if isinstance(x, Tensor) else x.operand, tuple(biases), group_sizes)
    return ops.run_checked(call)


def _has_row_scales(w: QTensor) -> bool:
    return isinstance(w, QTensor) and has_row_scales(w)


def _run_row_scaled(
    x: Tensor | QTensor,
    w: QTensor,
    bias: Tensor | None,
    x_format: Format | str | None,
    x_tensor_scale: float | Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    call = describe_call(
        x,
        [without_row_scales(w)],
        [bias],
        group_sizes=None,
        activation=None,
        x_format=x_format,
        x_tensor_scale=x_tensor_scale,
        out_dtype=out_dtype,
    )
    call.validate()

    def product(unscaled: QTensor) -> Tensor:
        return run(
            x,
            [unscaled],
            [None],
            x_format=x_format,
            x_tensor_scale=x_tensor_scale,
            out_dtype=torch.float32,
        )

    return scale_rows(product, w, bias, call.out_dtype)


def _run_op(call: ops.MatmulCall) -> Tensor:
    first, rest = call.weights[0], call.weights[1:]
    if rest:
        verb = ops.gated_matmul if call.group_sizes is None else ops.grouped_gated_matmul
    else:
        verb = ops.matmul if call.group_sizes is None else ops.grouped_matmul
    y: Tensor = verb(
        call.x.tensors,
        call.x.kind,
        call.x.shape,
        first.tensors,
        rest[0].tensors if rest else [],
        first.kind,
        first.shape,
        call.biases[0],
        call.biases[1] if rest else None,
        call.group_sizes,
        call.activation,
        call.x_format,
        call.x_codebook,
        call.x_tensor_scale,
        call.out_dtype,
    )
    return y
