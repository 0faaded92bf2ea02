"""Which way a call takes: by its plan, by a kernel that is chosen for it, under autograd, or by the
verb's op."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format
from blockscale.numerics import Activation
from blockscale.tensor.call import describe_call
from blockscale.tensor.plan_cache import (
    cached_plan,
    keep_forward,
    keep_new_plan,
    plan_key,
    replay_call,
)
from blockscale.tensor.qtensor import QTensor
from blockscale.tensor.row_scales import has_row_scales, scale_rows, without_row_scales


class _Rest(TypedDict):
    """What a call says beside its operands; see the verbs."""

    group_sizes: Tensor | None
    activation: str | Activation | None
    x_format: Format | str | None
    x_tensor_scale: float | Tensor | None
    out_dtype: torch.dtype | None


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
    rest: _Rest = {
        "group_sizes": group_sizes,
        "activation": activation,
        "x_format": x_format,
        "x_tensor_scale": x_tensor_scale,
        "out_dtype": out_dtype,
    }
    key = None
    # int8 alone is left to kernels, which may have a plan for it.
    if x_format in (None, "int8") and x_tensor_scale is None:
        inputs = _inputs(x, biases)
        if inputs is not None and ops.has_only_gradients(inputs):
            key = plan_key(x, weights, biases, group_sizes, activation, x_format, out_dtype)
            known = _run_differentiable if ops.needs_gradient(inputs) else _run_planned
            y = None if key is None else known(key, x, weights, biases, rest)
            if y is not None:
                return y
    if len(weights) == 1 and group_sizes is None and _has_row_scales(weights[0]):
        return _run_row_scaled(key, x, weights[0], biases[0], rest)
    call = describe_call(x, weights, biases, **rest)
    if not ops.has_only_gradients(call.tensors):
        return _run_op(call)
    if ops.needs_gradient(call.differentiated):
        if key is not None:
            keep_forward(key, call, weights)
        return ops.differentiable(call, partial(_run_again, x, weights, biases, rest))
    plan = None if key is None else keep_new_plan(key, call, weights)
    if plan is not None:
        return plan(x if isinstance(x, Tensor) else x.operand, tuple(biases), group_sizes)
    return ops.run_checked(call)


def _inputs(x: Tensor | QTensor, biases: list[Tensor | None]) -> tuple[Tensor | None, ...] | None:
    """What comes with a call, beside weights; None where x is something else, which is an error."""
    if isinstance(x, Tensor):
        return x, *biases
    return (*x.tensors, *biases) if isinstance(x, QTensor) else None


def _run_planned(
    key: Hashable,
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    rest: _Rest,
) -> Tensor | None:
    plan = cached_plan(key, weights)
    if plan is None:
        return None
    sizes = rest["group_sizes"]
    y = plan(x if isinstance(x, Tensor) else x.operand, tuple(biases), sizes)
    by_default = not (rest["x_format"] or rest["out_dtype"])
    if _keeps_replays and by_default and isinstance(x, Tensor) and isinstance(plan, ops.Plan):
        up = weights[1] if len(weights) > 1 else None
        calls = weights[0].replays
        ops.keep_replay(calls, key, plan, x, biases, sizes, up, rest["activation"])
    return y


def _run_differentiable(
    key: Hashable,
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    rest: _Rest,
) -> Tensor | None:
    """A call like one before it, which was checked."""
    forward = weights[0].forwards.get(key)
    if forward is None:
        return None
    mine, dx = ([x], x) if isinstance(x, Tensor) else (x.tensors, None)
    operands, sizes = [weight.operand for weight in weights], rest["group_sizes"]
    tensors = ops.needed_tensors(mine, operands, biases, sizes)
    launch = partial(_run_again, x, weights, biases, rest)
    return ops.differentiable_again(forward, tensors, launch, (dx, *biases))


def _run_again(
    x: Tensor | QTensor, weights: list[QTensor], biases: list[Tensor | None], rest: _Rest
) -> Tensor:
    """Without gradients, as a replay if there is one by now."""
    if rest["x_format"] is None and rest["x_tensor_scale"] is None and rest["out_dtype"] is None:
        up, up_bias = (weights[1], biases[1]) if len(weights) > 1 else (None, None)
        sizes, activation = rest["group_sizes"], rest["activation"]
        y = replay_call(x, weights[0], biases[0], up_bias, sizes, up, activation)
        if y is not None:
            return y
    return run(x, weights, biases, **rest)


def _has_row_scales(w: QTensor) -> bool:
    return isinstance(w, QTensor) and has_row_scales(w)


def _run_row_scaled(
    key: Hashable | None, x: Tensor | QTensor, w: QTensor, bias: Tensor | None, rest: _Rest
) -> Tensor:
    call = describe_call(x, [without_row_scales(w)], [bias], **rest)
    call.validate()
    unwatched = ops.has_only_gradients(call.tensors) and not ops.needs_gradient(call.differentiated)
    plan = keep_new_plan(key, call, [w]) if key is not None and unwatched else None
    if plan is not None:
        return plan(x if isinstance(x, Tensor) else x.operand, (bias,), None)
    in_float32: _Rest = {**rest, "out_dtype": torch.float32}
    return scale_rows(
        lambda unscaled: run(x, [unscaled], [None], **in_float32), w, bias, call.out_dtype
    )


def _run_op(call: ops.MatmulCall) -> Tensor:
    if ops.is_differentiated_by_transforms():
        return ops.run_transformed(call)
    if call.activation:
        verb = ops.gated_matmul if call.group_sizes is None else ops.grouped_gated_matmul
    else:
        verb = ops.matmul if call.group_sizes is None else ops.grouped_matmul
    y: Tensor = verb(*ops.op_arguments(call))
    return y
