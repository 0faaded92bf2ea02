"""The verbs as `torch.library` ops: opaque to compilers, with fake kernels and gradients.

Everything that is not a tensor crosses as a string, a dtype or a list of integers, and all storage
is uint8. Gradients flow to x and to biases, never to quantised weights. Where x is quantised on the
fly, its rounding counts as the identity for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, cast

import torch
from torch import Tensor
from torch.library import custom_op

from blockscale.numerics import parse_activation
from blockscale.ops.matmul import MatmulCall, run, run_input_grad
from blockscale.ops.operand import Operand
from blockscale.ops.quantize import derive_tensor_scale, run_dequantize, run_quantize, storage
from blockscale.problem import parse_kind

# Op schemas are inferred from these signatures, which know Optional[] but not "| None".
# ruff: noqa: UP045


@custom_op("blockscale::quantize", mutates_args=())
def quantize(
    x: Tensor,
    kind: str,
    rule: str,
    tensor_scale: Optional[Tensor],
    per_row: bool,
    codebook: Optional[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and tensor scale; the last is empty where the format has none."""
    parsed = parse_kind(kind)
    scalars = None
    if parsed.format.has_tensor_scale:  # cloned where given, since an output must not be an input
        if tensor_scale is None:
            scalars = derive_tensor_scale(x, parsed.format, per_row)
        else:
            scalars = tensor_scale.clone()
    codes, scale = run_quantize(x, parsed, rule, scalars, codebook)
    return codes, scale, x.new_empty(0, dtype=torch.float32) if scalars is None else scalars


@quantize.register_fake
def _(
    x: Tensor,
    kind: str,
    rule: str,
    tensor_scale: Optional[Tensor],
    per_row: bool,
    codebook: Optional[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    parsed = parse_kind(kind)
    codes, scale = storage(parsed, tuple(x.shape), x.device)
    if not parsed.format.has_tensor_scale:
        shape: Sequence[int] = (0,)
    elif tensor_scale is not None:
        shape = tensor_scale.shape
    else:
        shape = x.shape[:-1] if per_row else x.shape[:-2]
    return codes, scale, x.new_empty(shape, dtype=torch.float32)


@custom_op("blockscale::dequantize", mutates_args=())
def dequantize(q: Sequence[Tensor], kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return run_dequantize(Operand(q, kind, shape), dtype)


@dequantize.register_fake
def _(q: Sequence[Tensor], kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return q[0].new_empty(shape, dtype=dtype)


@custom_op("blockscale::input_grad", mutates_args=())
def input_grad(
    grad: Tensor,
    w: Sequence[Tensor],
    w_kind: str,
    w_shape: Sequence[int],
    group_sizes: Optional[Tensor],
    dtype: torch.dtype,
) -> Tensor:
    return run_input_grad(grad, Operand(w, w_kind, w_shape), group_sizes, dtype)


@input_grad.register_fake
def _(
    grad: Tensor,
    w: Sequence[Tensor],
    w_kind: str,
    w_shape: Sequence[int],
    group_sizes: Optional[Tensor],
    dtype: torch.dtype,
) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], w_shape[-1]), dtype=dtype)


def _matmul(
    x: Sequence[Tensor],
    x_kind: str,
    x_shape: Sequence[int],
    w: Sequence[Tensor],
    up: Sequence[Tensor],
    w_kind: str,
    w_shape: Sequence[int],
    bias: Optional[Tensor],
    up_bias: Optional[Tensor],
    group_sizes: Optional[Tensor],
    activation: str,
    x_format: str,
    x_tensor_scale: Optional[Tensor],
    out_dtype: torch.dtype,
) -> Tensor:
    """All verbs of the family; `up` is empty and `activation` "" where nothing is gated."""
    weights = [Operand(each, w_kind, w_shape) for each in (w, up) if each]
    return run(
        MatmulCall(
            Operand(x, x_kind, x_shape),
            weights,
            [bias, up_bias][: len(weights)],
            group_sizes,
            activation,
            x_format,
            x_tensor_scale,
            out_dtype,
        )
    )


def _matmul_fake(x: Sequence[Tensor], x_kind: str, x_shape: Sequence[int], *rest: Any) -> Tensor:
    w_shape, out_dtype = rest[3], rest[-1]
    return x[0].new_empty((*x_shape[:-1], w_shape[-2]), dtype=out_dtype)


def _save_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, x_kind, x_shape, w, up, w_kind, w_shape, bias, up_bias, group_sizes, *rest = inputs
    activation, x_format, x_tensor_scale, _ = rest
    ctx.x, ctx.w = (x_kind, list(x_shape)), (w_kind, list(w_shape))
    ctx.facts = (activation, x_format)
    ctx.x_dtype, ctx.counts = x[0].dtype, (len(x), len(w), len(up))
    ctx.bias_dtypes = [None if each is None else each.dtype for each in (bias, up_bias)]
    recomputed = x if activation else []  # only a gate's slope needs the forward again
    optional = (group_sizes, bias, up_bias, x_tensor_scale)
    ctx.save_for_backward(*optional, *w, *up, *recomputed)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    group_sizes, bias, up_bias, x_tensor_scale, *tensors = ctx.saved_tensors
    x_count, w_count, up_count = ctx.counts
    activation, x_format = ctx.facts
    weights = [tensors[:w_count], tensors[w_count : w_count + up_count]][: 1 + bool(up_count)]
    branch_grads = [grad]
    if activation:
        x = tensors[w_count + up_count :]
        again = matmul if group_sizes is None else grouped_matmul
        rest = (None, group_sizes, "", x_format, x_tensor_scale, torch.float32)
        branches = [
            again(x, *ctx.x, weight, [], *ctx.w, each_bias, *rest)
            for weight, each_bias in zip(weights, (bias, up_bias), strict=True)
        ]
        branch_grads = list(parse_activation(activation).gradients(grad.float(), *branches))
    x_grads: list[Tensor | None] = [None] * x_count
    if not ctx.x[0]:
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
    nothing = [None] * w_count, [None] * up_count
    return x_grads, None, None, *nothing, None, None, *bias_grads, *[None] * 5


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


def _define_matmul(name: str) -> Callable[..., Tensor]:
    op = custom_op(f"blockscale::{name}", _matmul, mutates_args=())
    op.register_fake(_matmul_fake)
    op.register_autograd(_gradient, setup_context=_save_for_gradient)
    return cast(Callable[..., Tensor], op)


matmul = _define_matmul("matmul")
gated_matmul = _define_matmul("gated_matmul")
grouped_matmul = _define_matmul("grouped_matmul")
grouped_gated_matmul = _define_matmul("grouped_gated_matmul")

MATMULS = {
    "matmul": matmul,
    "gated_matmul": gated_matmul,
    "grouped_matmul": grouped_matmul,
    "grouped_gated_matmul": grouped_gated_matmul,
}
