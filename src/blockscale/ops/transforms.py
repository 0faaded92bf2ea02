"""Products under the transforms of torch.func that take gradients: grad, vjp, and these of each
other.

Such a transform runs a call once for each of its levels, with the tensors of that level. So every
tensor of the call is an argument here, where an eager call has its launch in a closure, and what is
saved for a backward is saved apart from running it. A backward comes this way again, since another
level may want its gradient, or none be left of those that its tensors belong to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blockscale.ops.arguments import BIAS, X, call_of, op_arguments
from blockscale.ops.dispatcher import no_forward_mode
from blockscale.ops.gradients import Ways, forward_facts, gradients, tensors_of
from blockscale.ops.matmul import MatmulCall
from blockscale.ops.operand import Operand, plain


def run_transformed(call: MatmulCall) -> Tensor:
    y: Tensor = _Product.apply(call.verb, *op_arguments(call))
    return y


class _Product(torch.autograd.Function):
    generate_vmap_rule = True  # which meets the op, and its words that there is none

    @staticmethod
    def forward(verb: str, *arguments: Any) -> Tensor:
        y: Tensor = getattr(torch.ops.blockscale, verb).default(*arguments)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        call = call_of(*inputs[1:])
        ctx.verb, ctx.facts, ctx.count = inputs[0], forward_facts(call), len(inputs)
        ctx.save_for_backward(*tensors_of(call))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        biases = slice(1 + BIAS, 1 + BIAS + len(ctx.facts.bias_dtypes))
        needs = ctx.needs_input_grad[1 + X], *ctx.needs_input_grad[biases]
        found: list[Tensor | None] = [None] * ctx.count
        found[1 + X], *found[biases] = gradients(ctx, grad, needs, _TRANSFORMED)
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_forward_mode(ctx.verb)


def _run_input_grad(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> Tensor:
    dx: Tensor = _InputGrad.apply(
        grad, weight.tensors, weight.kind, weight.shape, group_sizes, dtype
    )
    return dx


class _InputGrad(torch.autograd.Function):
    """The gradient of a product's gradient is the product."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        dx: Tensor = torch.ops.blockscale.input_grad.default(*arguments)
        return dx

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        grad, weight, *ctx.kind_and_shape, group_sizes, _ = inputs
        ctx.dtype = grad.dtype
        ctx.save_for_backward(group_sizes, *weight)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        group_sizes, *tensors = ctx.saved_tensors
        weight = Operand(tensors, *ctx.kind_and_shape)
        call = MatmulCall(plain(above), [weight], [None], group_sizes, "", "", (), None, ctx.dtype)
        return run_transformed(call), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_forward_mode("input_grad")


_TRANSFORMED = Ways(run_transformed, _run_input_grad)
