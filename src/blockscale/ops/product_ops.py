"""Products as `torch.library` ops: opaque to compilers, with fake kernels and gradients.

All storage is uint8. A call is checked inside the op, real or fake, so that compilers trace next to
nothing.

Compiled programs run these ops, at every product. So their kernels are registered with the
dispatcher itself: `torch.library.custom_op` wraps a kernel in layers of Python that cost four times
what the dispatcher does, and that import torch's compiler at the first call, which takes as long as
importing torch. Where the extension of replays is there, calls that nobody watches do not reach the
dispatcher at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake

from blockscale.ops.arguments import BIAS, SCHEMA, X, call_of, tensors_in
from blockscale.ops.by_address import run_arguments, run_input_grad, skip_to_kernel
from blockscale.ops.dispatcher import (
    can_skip_dispatcher,
    has_gradients,
    needs_gradient,
    refuse_tangents,
)
from blockscale.ops.gradients import (
    differentiable,
    differentiable_input_grad,
    forward_facts,
    gradients,
    tensors_of,
)
from blockscale.ops.operand import Operand
from blockscale.ops.untraced import untraced
from blockscale.ops.validate import check_gradient
from blockscale.runtime.torch_private import BelowAutograd, below_autograd

_INPUT_GRAD_SCHEMA = (
    "(Tensor grad, Tensor[] w, str w_kind, SymInt[] w_shape, Tensor? group_sizes, ScalarType dtype)"
    " -> Tensor"
)


class OpLibrary:
    """Ops of a namespace, as they are registered.

    below_autograd   how a kernel of autograd dispatches a call further; None: torch does it
    """

    def __init__(self, namespace: str, below_autograd: BelowAutograd | None) -> None:
        self._library = Library(namespace, "FRAGMENT")  # its ops go with it
        self._below_autograd = below_autograd

    def define(
        self, name: str, schema: str, real: Callable[..., Any], fake: Callable[..., Any]
    ) -> Any:
        library = self._library
        library.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
        library.impl(name, real, "CompositeExplicitAutograd")
        register_fake(f"{library.ns}::{name}", fake, lib=library)
        return getattr(getattr(torch.ops, library.ns), name).default

    def differentiate(
        self, name: str, op: Any, real: Callable[..., Tensor], kernel: Callable[..., Tensor]
    ) -> bool:
        """By `kernel`, called with what dispatches a call further, and the op's arguments."""
        if self._below_autograd is None:
            return False
        guard, keys_below = self._below_autograd
        # The dispatcher's keys of calls that nobody watched: they name each mode, transform,
        # subclass and sign that there is. Only gradients do not show in them.
        unwatched: set[int] = set()

        def on_autograd(keys: Any, *arguments: Any) -> Tensor:
            seen = keys.raw_repr()
            if seen in unwatched and not has_gradients():
                return real(*arguments)
            if can_skip_dispatcher(tensors_in(arguments)):
                unwatched.add(seen)
                return real(*arguments)
            refuse_tangents(name, tensors_in(arguments))

            def further() -> Tensor:
                with guard():
                    y: Tensor = op.redispatch(keys & keys_below, *arguments)
                    return y

            return kernel(further, *arguments)

        self._library.impl(name, untraced(on_autograd), "Autograd", with_keyset=True)
        return True

    def refuse_gradient(self, name: str, op: Any) -> None:
        def refuse(ctx: Any, *grads: Any) -> Any:
            raise RuntimeError(
                f"blockscale.{name} has no gradient: detach its argument; a product with x_format "
                "has one, through which rounding passes"
            )

        register_autograd(op, refuse, lib=self._library)

    def define_product(self, name: str) -> Any:
        op = self.define(name, SCHEMA, _product, _fake_product)
        if not self.differentiate(name, op, _product, _differentiable_product):
            register_autograd(op, _gradients, setup_context=_save, lib=self._library)
        skip_to_kernel(op, _product)
        return op

    def define_input_grad(self) -> Any:
        op = self.define("input_grad", _INPUT_GRAD_SCHEMA, _input_grad, _fake_input_grad)
        self.differentiate("input_grad", op, _input_grad, _differentiable_input_grad)
        return op


# --- the matmul family ---------------------------------------------------------------------------


_product = untraced(run_arguments)


def _fake_product(*arguments: Any) -> Tensor:
    call = call_of(*arguments)
    call.validate()
    return call.x.tensors[0].new_empty(call.out_shape, dtype=call.out_dtype)


def _differentiable_product(further: Callable[[], Tensor], *arguments: Any) -> Tensor:
    call = call_of(*arguments)
    return differentiable(call, further) if needs_gradient(call.differentiated) else further()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    call = call_of(*inputs)
    ctx.facts = forward_facts(call)
    ctx.save_for_backward(*tensors_of(call))
    ctx.needs = [tensor is not None and tensor.requires_grad for tensor in call.differentiated]
    ctx.lengths = [len(each) if isinstance(each, (list, tuple)) else None for each in inputs]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """One for each argument; of a list of tensors, one for each."""
    dx, *of_biases = gradients(ctx, grad, ctx.needs)
    found: list[Any] = [None if length is None else [None] * length for length in ctx.lengths]
    found[X], found[BIAS : BIAS + len(of_biases)] = dx, of_biases
    return tuple(found)


# --- the gradient of x ---------------------------------------------------------------------------


@untraced
def _input_grad(
    grad: Tensor,
    w: Sequence[Tensor],
    kind: str,
    shape: Sequence[int],
    group_sizes: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return run_input_grad(grad, Operand(w, kind, shape), group_sizes, dtype)


def _fake_input_grad(
    grad: Tensor,
    w: Sequence[Tensor],
    kind: str,
    shape: Sequence[int],
    group_sizes: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    check_gradient(grad, Operand(w, kind, shape), group_sizes, dtype)
    return grad.new_empty((*grad.shape[:-1], shape[-1]), dtype=dtype)


def _differentiable_input_grad(
    further: Callable[[], Tensor],
    grad: Tensor,
    w: Sequence[Tensor],
    kind: str,
    shape: Sequence[int],
    group_sizes: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    if not needs_gradient([grad]):
        return further()
    return differentiable_input_grad(grad, Operand(w, kind, shape), group_sizes, further)


_ops = OpLibrary("blockscale", below_autograd)
input_grad = _ops.define_input_grad()
matmul, gated_matmul = _ops.define_product("matmul"), _ops.define_product("gated_matmul")
grouped_matmul = _ops.define_product("grouped_matmul")
grouped_gated_matmul = _ops.define_product("grouped_gated_matmul")
