"""The verbs as `torch.library` ops: opaque to compilers, with fake kernels and gradients.

Everything that is not a tensor crosses as a string, a dtype or a list of numbers, and all storage
is uint8. A call is checked inside the op, real or fake, so that compilers trace next to nothing.
Gradients flow to x and to biases, never to quantised weights. Where x is quantised on the fly, its
rounding counts as the identity for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from blockscale.numerics import parse_activation
from blockscale.ops.matmul import MatmulCall, run, run_input_grad
from blockscale.ops.operand import Operand
from blockscale.ops.quantize import (
    codebook_tensor,
    derive_tensor_scale,
    run_dequantize,
    run_quantize,
    storage,
)
from blockscale.problem import parse_kind


def _define(name: str, schema: str, real: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    op = custom_op(f"blockscale::{name}", real, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


# --- quantize, dequantize ------------------------------------------------------------------------


def _quantize(
    x: Tensor,
    kind: str,
    codebook: Sequence[float],
    rule: str,
    tensor_scale: Tensor | None,
    per_row: bool,
) -> list[Tensor]:
    """codes, scale, then what the format has of tensor_scale and codebook."""
    parsed = parse_kind(kind)
    table = codebook_tensor(tuple(codebook), x.device).clone() if codebook else None
    scalars = None
    if parsed.format.has_tensor_scale:  # cloned where given: an output must not be an input
        derived = derive_tensor_scale(x, parsed.format, per_row) if tensor_scale is None else None
        scalars = derived if tensor_scale is None else tensor_scale.clone()
    codes, scale = run_quantize(x, parsed, rule, scalars, table)
    return [part for part in (codes, scale, scalars, table) if part is not None]


def _quantize_fake(
    x: Tensor,
    kind: str,
    codebook: Sequence[float],
    rule: str,
    tensor_scale: Tensor | None,
    per_row: bool,
) -> list[Tensor]:
    parsed = parse_kind(kind)
    parts = [*storage(parsed, tuple(x.shape), x.device)]
    if parsed.format.has_tensor_scale:
        lead = x.shape[:-1] if per_row else x.shape[:-2]
        shape = lead if tensor_scale is None else tensor_scale.shape
        parts.append(x.new_empty(shape, dtype=torch.float32))
    if codebook:
        parts.append(x.new_empty(len(codebook), dtype=torch.float32))
    return parts


quantize = _define(
    "quantize",
    "(Tensor x, str kind, float[] codebook, str rule, Tensor? tensor_scale, bool per_row)"
    " -> Tensor[]",
    _quantize,
    _quantize_fake,
)

dequantize = _define(
    "dequantize",
    "(Tensor[] q, str kind, SymInt[] shape, ScalarType dtype) -> Tensor",
    lambda q, kind, shape, dtype: run_dequantize(Operand(q, kind, shape), dtype),
    lambda q, kind, shape, dtype: q[0].new_empty(shape, dtype=dtype),
)


# --- the matmul family ---------------------------------------------------------------------------

_MATMUL_SCHEMA = (
    "(Tensor[] x, str x_kind, SymInt[] x_shape, Tensor[] w, Tensor[] up, str w_kind, "
    "SymInt[] w_shape, Tensor? bias, Tensor? up_bias, Tensor? group_sizes, str activation, "
    "str x_format, float[] x_codebook, Tensor? x_tensor_scale, ScalarType out_dtype) -> Tensor"
)


def _call(
    x: Sequence[Tensor],
    x_kind: str,
    x_shape: Sequence[int],
    w: Sequence[Tensor],
    up: Sequence[Tensor],
    w_kind: str,
    w_shape: Sequence[int],
    bias: Tensor | None,
    up_bias: Tensor | None,
    *rest: Any,
) -> MatmulCall:
    """The checked call; `up` is empty where nothing is gated."""
    weights = [Operand(each, w_kind, w_shape) for each in (w, up) if each]
    biases = [bias, up_bias][: len(weights)]
    call = MatmulCall(Operand(x, x_kind, x_shape), weights, biases, *rest)
    call.validate()
    return call


def _matmul_fake(*args: Any) -> Tensor:
    call = _call(*args)
    return call.x.tensors[0].new_empty(call.out_shape, dtype=call.out_dtype)


def _define_matmul(name: str) -> Any:
    op = _define(name, _MATMUL_SCHEMA, lambda *args: run(_call(*args)), _matmul_fake)
    op.register_autograd(_gradient, setup_context=_save_for_gradient)
    return op


input_grad = _define(
    "input_grad",
    "(Tensor grad, Tensor[] w, str w_kind, SymInt[] w_shape, Tensor? group_sizes, ScalarType dtype)"
    " -> Tensor",
    lambda grad, w, kind, shape, group_sizes, dtype: run_input_grad(
        grad, Operand(w, kind, shape), group_sizes, dtype
    ),
    lambda grad, w, kind, shape, group_sizes, dtype: grad.new_empty(
        (*grad.shape[:-1], shape[-1]), dtype=dtype
    ),
)


def _save_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, x_kind, x_shape, w, up, w_kind, w_shape, bias, up_bias, group_sizes, *rest = inputs
    activation, x_format, x_codebook, x_tensor_scale, _ = rest
    ctx.x, ctx.w = (x_kind, list(x_shape)), (w_kind, list(w_shape))
    ctx.facts = (activation, x_format, list(x_codebook))
    ctx.x_dtype, ctx.counts = x[0].dtype, (len(x), len(w), len(up))
    ctx.bias_dtypes = [None if each is None else each.dtype for each in (bias, up_bias)]
    recomputed = x if activation else []  # only a gate's slope needs the forward again
    ctx.save_for_backward(group_sizes, bias, up_bias, x_tensor_scale, *w, *up, *recomputed)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    group_sizes, bias, up_bias, x_tensor_scale, *tensors = ctx.saved_tensors
    x_count, w_count, up_count = ctx.counts
    activation, *x_facts = ctx.facts
    weights = [tensors[:w_count], tensors[w_count : w_count + up_count]][: 1 + bool(up_count)]
    branch_grads = [grad]
    if activation:
        x = tensors[w_count + up_count :]
        again = matmul if group_sizes is None else grouped_matmul
        rest = (None, group_sizes, "", *x_facts, x_tensor_scale, torch.float32)
        branches = [
            again(x, *ctx.x, weight, [], *ctx.w, each_bias, *rest)
            for weight, each_bias in zip(weights, (bias, up_bias), strict=True)
        ]
        branch_grads = list(parse_activation(activation).gradients(grad.float(), *branches))
    x_grads: list[Tensor | None] = [None] * x_count
    if not ctx.x[0]:  # a plain x
        wide = ctx.x_dtype if len(weights) == 1 else torch.float32
        parts = [
            input_grad(each, weight, *ctx.w, group_sizes, wide)
            for each, weight in zip(branch_grads, weights, strict=True)
        ]
        x_grads = [parts[0] if len(parts) == 1 else (parts[0] + parts[1]).to(ctx.x_dtype)]
    bias_grads = [
        None if dtype is None else _bias_gradient(each, group_sizes, ctx.w[1]).to(dtype)
        for each, dtype in zip(branch_grads, ctx.bias_dtypes, strict=False)
    ]
    bias_grads += [None] * (2 - len(bias_grads))
    # One entry per argument, lists for lists: the weights and x_codebook have no gradients.
    nothing = [None] * w_count, [None] * up_count, None, None
    rest_of_it = None, None, None, [None] * len(x_facts[1]), None, None
    return x_grads, None, None, *nothing, *bias_grads, *rest_of_it


def _bias_gradient(grad: Tensor, group_sizes: Tensor | None, w_shape: list[int]) -> Tensor:
    """Sum of the rows that a bias was added to, float32: [n], [l, n] or [e, n]."""
    grad = grad.float()
    if group_sizes is None:
        lead = grad.shape[0] if len(w_shape) == 3 else 1
        return grad.reshape(lead, -1, grad.shape[-1]).sum(1).reshape([*w_shape[:-2], w_shape[-2]])
    row = torch.arange(grad.shape[0], device=grad.device)
    expert = torch.searchsorted(group_sizes.cumsum(0), row, right=True)  # e for rows of nobody
    sums = grad.new_zeros(w_shape[0] + 1, grad.shape[-1]).index_add(0, expert, grad)
    return sums[:-1]


matmul = _define_matmul("matmul")
gated_matmul = _define_matmul("gated_matmul")
grouped_matmul = _define_matmul("grouped_matmul")
grouped_gated_matmul = _define_matmul("grouped_gated_matmul")
