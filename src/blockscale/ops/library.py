"""The verbs as `torch.library` ops: opaque to compilers, with fake kernels and gradients.

Everything that is not a tensor crosses as a string, a dtype or a list of numbers, and all storage
is uint8. A call is checked inside the op, real or fake, so that compilers trace next to nothing.
Gradients flow to x and to biases, never to quantised weights. Where x is quantised on the fly, its
rounding counts as the identity for the gradient. A gradient of y is rounded to x's dtype before it
meets the weights, as torch does for a layer whose result is widened: products in bfloat16 stay so.
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
    derive_tensor_scale,
    kept_codebook,
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
    importance: Tensor | None = None,
) -> list[Tensor]:
    """codes, scale, then what the format has of tensor_scale and codebook."""
    parsed = parse_kind(kind)
    # From a kept copy, so that nothing comes from the host: a CUDA graph may be captured. Cloned,
    # since two results must not share their memory.
    table = kept_codebook(tuple(codebook), x.device).clone() if codebook else None
    scalars = None
    if parsed.format.has_tensor_scale:  # cloned where given: an output must not be an input
        derived = derive_tensor_scale(x, parsed.format, per_row) if tensor_scale is None else None
        scalars = derived if tensor_scale is None else tensor_scale.clone()
    codes, scale = run_quantize(x, parsed, rule, scalars, table, importance)
    return [part for part in (codes, scale, scalars, table) if part is not None]


def _quantize_fake(
    x: Tensor,
    kind: str,
    codebook: Sequence[float],
    rule: str,
    tensor_scale: Tensor | None,
    per_row: bool,
    importance: Tensor | None = None,
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
    "(Tensor x, str kind, float[] codebook, str rule, Tensor? tensor_scale, bool per_row,"
    " Tensor? importance=None) -> Tensor[]",
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

_MATMUL_ARGUMENTS = {
    "x": "Tensor[]",
    "x_kind": "str",
    "x_shape": "SymInt[]",
    "w": "Tensor[]",
    "up": "Tensor[]",
    "w_kind": "str",
    "w_shape": "SymInt[]",
    "bias": "Tensor?",
    "up_bias": "Tensor?",
    "group_sizes": "Tensor?",
    "activation": "str",
    "x_format": "str",
    "x_codebook": "float[]",
    "x_tensor_scale": "Tensor?",
    "out_dtype": "ScalarType",
}
_MATMUL_SCHEMA = f"({', '.join(f'{t} {name}' for name, t in _MATMUL_ARGUMENTS.items())}) -> Tensor"


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
    call = dict(zip(_MATMUL_ARGUMENTS, inputs, strict=True))
    ctx.x_dtype = call["x"][0].dtype
    ctx.lengths = {name: len(call[name]) for name in ("x", "w", "up", "x_codebook")}
    ctx.needs = {"x": not call["x_kind"] and call["x"][0].requires_grad} | {
        name: call[name] is not None and call[name].requires_grad for name in ("bias", "up_bias")
    }
    # Only the slope of a gate needs the forward again, and with it x.
    kept = call["x"] if call["activation"] else []
    optional = ("bias", "up_bias", "group_sizes", "x_tensor_scale")
    ctx.save_for_backward(*(call[name] for name in optional), *call["w"], *call["up"], *kept)
    ctx.facts = {
        name: value for name, value in call.items() if "Tensor" not in _MATMUL_ARGUMENTS[name]
    }


def _saved_call(ctx: Any) -> dict[str, Any]:
    """The arguments of the forward; x is empty where it was not kept."""
    bias, up_bias, group_sizes, x_tensor_scale, *tensors = ctx.saved_tensors
    first, second = ctx.lengths["w"], ctx.lengths["w"] + ctx.lengths["up"]
    facts: dict[str, Any] = ctx.facts
    return facts | {
        "x": tensors[second:],
        "w": tensors[:first],
        "up": tensors[first:second],
        "bias": bias,
        "up_bias": up_bias,
        "group_sizes": group_sizes,
        "x_tensor_scale": x_tensor_scale,
    }


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    call = _saved_call(ctx)
    branches = {"w": grad} if not call["activation"] else _branch_gradients(call, grad)
    grads: dict[str, Any] = dict.fromkeys(_MATMUL_ARGUMENTS)
    grads |= {name: [None] * ctx.lengths[name] for name in ("x", "w", "up")}
    if not ctx.lengths["x_codebook"]:
        grads["x_codebook"] = []  # torch takes an empty list for a list of tensors
    if ctx.needs["x"]:
        facts = call["w_kind"], call["w_shape"], call["group_sizes"]
        if len(branches) == 1:
            grads["x"] = [input_grad(grad.to(ctx.x_dtype), call["w"], *facts, ctx.x_dtype)]
        else:
            parts = [
                input_grad(d.to(ctx.x_dtype), call[name], *facts, torch.float32)
                for name, d in branches.items()
            ]
            grads["x"] = [(parts[0] + parts[1]).to(ctx.x_dtype)]
    for name, weight in (("bias", "w"), ("up_bias", "up")):
        if ctx.needs[name]:
            total = _bias_gradient(branches[weight], call["group_sizes"], call["w_shape"])
            grads[name] = total.to(call[name].dtype)
    return tuple(grads.values())


def _branch_gradients(call: dict[str, Any], grad: Tensor) -> dict[str, Tensor]:
    """Gradients of the two products under a gate, float32, from the products computed again."""
    single: dict[str, Any] = {
        "up": [],
        "up_bias": None,
        "activation": "",
        "out_dtype": torch.float32,
    }
    op = matmul if call["group_sizes"] is None else grouped_matmul
    gate, up = (
        op(*_in_order(call | single | {"w": call[weight], "bias": call[bias]}))
        for weight, bias in (("w", "bias"), ("up", "up_bias"))
    )
    slopes = parse_activation(call["activation"]).gradients(grad.float(), gate, up)
    return dict(zip(("w", "up"), slopes, strict=True))


def _in_order(call: dict[str, Any]) -> list[Any]:
    return [call[name] for name in _MATMUL_ARGUMENTS]


def _bias_gradient(grad: Tensor, group_sizes: Tensor | None, w_shape: list[int]) -> Tensor:
    """Sum of the rows that a bias was added to, float32: [n], [l, n] or [e, n]."""
    grad = grad.float()
    if group_sizes is None:
        return grad.sum(-2) if len(w_shape) == 3 else grad.flatten(0, -2).sum(0)
    row = torch.arange(grad.shape[0], device=grad.device)
    ends = group_sizes.clamp(min=0).cumsum(0)
    expert = torch.searchsorted(ends, row, right=True)  # e for rows of nobody
    sums = grad.new_zeros(w_shape[0] + 1, grad.shape[-1]).index_add(0, expert, grad)
    return sums[:-1]


matmul = _define_matmul("matmul")
gated_matmul = _define_matmul("gated_matmul")
grouped_matmul = _define_matmul("grouped_matmul")
grouped_gated_matmul = _define_matmul("grouped_gated_matmul")
