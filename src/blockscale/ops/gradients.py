"""Gradients of the matmul family: one formula for the ops and for eager calls.

They flow to x and to biases, never to quantised weights. Where x is quantised on the fly, its
rounding counts as the identity for the gradient. A gradient of y is rounded to x's dtype before it
meets the weights, as torch does for a layer whose result is widened: products in bfloat16 stay so.

The tensors that a backward needs are saved by torch, which notices when one of them is changed in
place meanwhile. A backward that somebody watches (a compiler, a mode, a gradient of the gradient)
calls the ops; any other skips the dispatcher, as an eager forward does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.numerics import parse_activation
from blockscale.ops.arguments import op_arguments
from blockscale.ops.by_address import run_call, run_input_grad
from blockscale.ops.dispatcher import can_skip_dispatcher
from blockscale.ops.matmul import MatmulCall
from blockscale.ops.operand import Operand, plain


class Forward(NamedTuple):
    """What a backward has to know of a call, beside its tensors."""

    x_kind: str
    x_shape: Sequence[int]
    x_dtype: torch.dtype
    w_kind: str
    w_shape: Sequence[int]
    w_count: int  # tensors of a weight
    bias_dtypes: tuple[torch.dtype | None, ...]
    activation: str
    x_format: str
    x_codebook: Sequence[float]


class Saved(NamedTuple):
    """The tensors of a call that torch has kept for its backward; a plain product needs no x."""

    group_sizes: Tensor | None
    weights: list[Operand]
    x_tensor_scale: Tensor | None
    biases: Sequence[Tensor | None]
    x: Operand


class Ways(NamedTuple):
    """How a backward multiplies."""

    product: Callable[[MatmulCall], Tensor]
    input_grad: Callable[[Tensor, Operand, Tensor | None, torch.dtype], Tensor]


def differentiable(call: MatmulCall, launch: Callable[[], Tensor]) -> Tensor:
    """What `launch` returns for `call`, with its gradients."""
    facts, tensors = forward_facts(call), tensors_of(call)
    y: Tensor = _Product.apply(facts, tensors, launch, *call.differentiated)
    return y


def differentiable_again(
    facts: Forward,
    tensors: Sequence[Tensor | None],
    launch: Callable[[], Tensor],
    differentiated: Sequence[Tensor | None],
) -> Tensor:
    """The same of a call whose facts are known, where no transform is active: the method of
    torch.autograd.Function would ask for one."""
    apply = super(torch.autograd.Function, _Product).apply
    y: Tensor = apply(facts, tensors, launch, *differentiated)
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        facts: Forward,
        tensors: Sequence[Tensor | None],
        launch: Callable[[], Tensor],
        *differentiated: Tensor | None,
    ) -> Tensor:
        ctx.facts = facts
        ctx.save_for_backward(*tensors)
        return launch()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *gradients(ctx, grad, ctx.needs_input_grad[3:])


def forward_facts(call: MatmulCall) -> Forward:
    weight = call.weights[0]
    return Forward(
        call.x.kind,
        call.x.shape,
        call.x.tensors[0].dtype,
        weight.kind,
        weight.shape,
        len(weight.tensors),
        tuple([None if bias is None else bias.dtype for bias in call.biases]),
        call.activation,
        call.x_format,
        call.x_codebook,
    )


def needed_tensors(
    x: Sequence[Tensor],
    weights: Sequence[Operand],
    biases: Sequence[Tensor | None],
    group_sizes: Tensor | None,
    x_tensor_scale: Tensor | None = None,
) -> list[Tensor | None]:
    """Of weights alone, or of gate and up: only the slope of a gate needs the forward again, and
    with it x and the biases."""
    if len(weights) == 1:
        return [group_sizes, *weights[0].tensors]
    gate, up = weights
    return [group_sizes, *gate.tensors, *up.tensors, x_tensor_scale, *biases, *x]


def tensors_of(call: MatmulCall) -> list[Tensor | None]:
    """That its backward needs."""
    return needed_tensors(
        call.x.tensors, call.weights, call.biases, call.group_sizes, call.x_tensor_scale
    )


def gradients(
    ctx: Any, grad: Tensor, needs: Sequence[bool], ways: Ways | None = None
) -> list[Tensor | None]:
    """Of x and of each bias, where they are needed."""
    tensors = ctx.saved_tensors  # an error where one was changed
    facts, saved = ctx.facts, _restored(ctx.facts, tensors)
    if ways is None:
        ways = _EAGER if can_skip_dispatcher((grad, *tensors)) else _WATCHED
    needs_x, *needs_biases = needs
    branches = _branch_gradients(facts, saved, grad, ways) if facts.activation else (grad,)
    found = [_gradient_of_x(facts, branches, saved, ways) if needs_x else None]
    for needed, branch, dtype in zip(needs_biases, branches, facts.bias_dtypes, strict=True):
        total = bias_gradient(branch, saved.group_sizes, facts.w_shape) if needed else None
        found.append(None if total is None else total.to(dtype))
    return found


class _InputGrad(torch.autograd.Function):
    """The gradient of a product's gradient is the product."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        weight: Operand,
        group_sizes: Tensor | None,
        launch: Callable[[], Tensor],
    ) -> Tensor:
        ctx.facts = weight.kind, weight.shape, grad.dtype
        ctx.save_for_backward(group_sizes, *weight.tensors)
        return launch()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        group_sizes, *tensors = ctx.saved_tensors
        kind, shape, dtype = ctx.facts
        weight, x = Operand(tensors, kind, shape), plain(above)
        call = MatmulCall(x, [weight], [None], group_sizes, "", "", (), None, dtype)
        return run_op(call), None, None, None


def differentiable_input_grad(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, launch: Callable[[], Tensor]
) -> Tensor:
    dx: Tensor = _InputGrad.apply(grad, weight, group_sizes, launch)
    return dx


def _restored(facts: Forward, tensors: Sequence[Tensor]) -> Saved:
    count = facts.w_count
    starts = (1, 1 + count) if facts.activation else (1,)
    weights = [
        Operand(tensors[start : start + count], facts.w_kind, facts.w_shape) for start in starts
    ]
    rest = tensors[1 + count * len(weights) :] if facts.activation else (None, None, None)
    x = Operand(rest[3:], facts.x_kind, facts.x_shape)
    return Saved(tensors[0], weights, rest[0], rest[1:3], x)


def _gradient_of_x(facts: Forward, branches: Sequence[Tensor], saved: Saved, ways: Ways) -> Tensor:
    dtype, sizes = facts.x_dtype, saved.group_sizes
    if len(branches) == 1:
        return ways.input_grad(branches[0].to(dtype), saved.weights[0], sizes, dtype)
    gate, up = (
        ways.input_grad(branch.to(dtype), weight, sizes, torch.float32)
        for branch, weight in zip(branches, saved.weights, strict=True)
    )
    return (gate + up).to(dtype)


def _branch_gradients(
    facts: Forward, saved: Saved, grad: Tensor, ways: Ways
) -> tuple[Tensor, Tensor]:
    """Gradients of the two products under a gate, float32, from the products computed again."""
    of_x = facts.x_format, facts.x_codebook, saved.x_tensor_scale
    gate, up = (
        ways.product(
            MatmulCall(saved.x, [weight], [bias], saved.group_sizes, "", *of_x, torch.float32)
        )
        for weight, bias in zip(saved.weights, saved.biases, strict=True)
    )
    return parse_activation(facts.activation).gradients(grad.float(), gate, up)


def bias_gradient(grad: Tensor, group_sizes: Tensor | None, w_shape: Sequence[int]) -> Tensor:
    """Sum of the rows that a bias was added to, float32: [n], [l, n] or [e, n]."""
    grad = grad.float()
    if group_sizes is None:
        rows = grad if len(w_shape) == 3 else grad.reshape(prod(grad.shape[:-1]), grad.shape[-1])
        return rows.sum(-2)
    row = torch.arange(grad.shape[0], device=grad.device)
    ends = group_sizes.clamp(min=0).cumsum(0)
    expert = torch.searchsorted(ends, row, right=True)  # e for rows of nobody
    sums = grad.new_zeros(w_shape[0] + 1, grad.shape[-1]).index_add(0, expert, grad)
    return sums[:-1]


def run_op(call: MatmulCall) -> Tensor:
    """By the dispatcher, for whoever watches."""
    y: Tensor = getattr(torch.ops.blockscale, call.verb).default(*op_arguments(call))
    return y


def _run_input_grad_op(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> Tensor:
    dx: Tensor = torch.ops.blockscale.input_grad.default(
        grad, weight.tensors, weight.kind, weight.shape, group_sizes, dtype
    )
    return dx


_EAGER = Ways(run_call, run_input_grad)
_WATCHED = Ways(run_op, _run_input_grad_op)
