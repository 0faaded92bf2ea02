"""Products as `torch.library` ops: opaque to compilers, with fake kernels and gradients.

Everything that is not a tensor crosses as a string, a dtype or a list of numbers, and all storage
is uint8. A call is checked inside the op, real or fake, so that compilers trace next to nothing.

Compiled programs run these ops, at every product. So their kernels are registered with the
dispatcher itself: `torch.library.custom_op` wraps a kernel in layers of Python that cost four times
what the dispatcher does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake

from blockscale.ops.by_address import replay_call, run_call, run_input_grad
from blockscale.ops.dispatcher import can_skip_dispatcher, needs_gradient
from blockscale.ops.gradients import (
    differentiable,
    differentiable_input_grad,
    forward_facts,
    gradients,
    tensors_of,
)
from blockscale.ops.matmul import MatmulCall
from blockscale.ops.operand import Operand
from blockscale.runtime.torch_private import BelowAutograd, below_autograd

_SCHEMA = (
    "(Tensor[] x, str x_kind, SymInt[] x_shape, Tensor[] w, Tensor[] up, str w_kind,"
    " SymInt[] w_shape, Tensor? bias, Tensor? up_bias, Tensor? group_sizes, str activation,"
    " str x_format, float[] x_codebook, Tensor? x_tensor_scale, ScalarType out_dtype) -> Tensor"
)
_INPUT_GRAD_SCHEMA = (
    "(Tensor grad, Tensor[] w, str w_kind, SymInt[] w_shape, Tensor? group_sizes, ScalarType dtype)"
    " -> Tensor"
)


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compiler.disable, which would import the compiler. Where nobody has imported it nobody
    traces; else it would step into a kernel that is called by a frame it does not compile."""
    disabled: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not disabled and "torch._dynamo" in sys.modules:
            disabled.append(torch.compiler.disable(function))
        return (disabled[0] if disabled else function)(*arguments)

    return call


_run_input_grad = _untraced(run_input_grad)


class OpLibrary:
    """Ops of a namespace, as they are registered.

    below_autograd   how a kernel of autograd dispatches a call further; None: torch does it
    """

    def __init__(self, namespace: str, below_autograd: BelowAutograd | None) -> None:
        self._library = Library(namespace, "FRAGMENT")  # its ops go with it
        self._below_autograd = below_autograd

    def define(
        self, name: str, schema: str, real: Callable[..., Tensor], fake: Callable[..., Tensor]
    ) -> Any:
        library = self._library
        library.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
        library.impl(name, real, "CompositeExplicitAutograd")
        register_fake(f"{library.ns}::{name}", fake, lib=library)
        return getattr(getattr(torch.ops, library.ns), name).default

    def differentiate(self, name: str, op: Any, kernel: Callable[..., Tensor]) -> bool:
        """By `kernel`, called with what dispatches a call further, and the op's arguments."""
        if self._below_autograd is None:
            return False
        guard, keys_below = self._below_autograd

        def on_autograd(keys: Any, *arguments: Any) -> Tensor:
            def further() -> Tensor:
                with guard():
                    y: Tensor = op.redispatch(keys & keys_below, *arguments)
                    return y

            return kernel(further, *arguments)

        self._library.impl(name, on_autograd, "Autograd", with_keyset=True)
        return True

    def define_product(self, name: str) -> Any:
        op = self.define(name, _SCHEMA, _product, _fake_product)
        if not self.differentiate(name, op, _differentiable_product):
            register_autograd(op, _gradients, setup_context=_save, lib=self._library)
        return op

    def define_input_grad(self) -> Any:
        op = self.define("input_grad", _INPUT_GRAD_SCHEMA, _input_grad, _fake_input_grad)
        self.differentiate("input_grad", op, _differentiable_input_grad)
        return op


# --- the matmul family ---------------------------------------------------------------------------


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
    """`up` is empty where nothing is gated."""
    weights = [Operand(each, w_kind, w_shape) for each in (w, up) if each]
    biases = [bias, up_bias][: len(weights)]
    return MatmulCall(Operand(x, x_kind, x_shape), weights, biases, *rest)


def _product(*arguments: Any) -> Tensor:
    y: Tensor = _run_product(arguments)
    return y


def _fake_product(*arguments: Any) -> Tensor:
    call = _call(*arguments)
    call.validate()
    return call.x.tensors[0].new_empty(call.out_shape, dtype=call.out_dtype)


def _differentiable_product(
    further: Callable[[], Tensor],
    x: Sequence[Tensor],
    x_kind: str,
    x_shape: Sequence[int],
    w: Sequence[Tensor],
    up: Sequence[Tensor],
    w_kind: str,
    w_shape: Sequence[int],
    bias: Tensor | None,
    up_bias: Tensor | None,
    group_sizes: Tensor | None,
    *rest: Any,
) -> Tensor:
    """Nobody watches a compiled program as it runs: its calls end here."""
    arguments = x, x_kind, x_shape, w, up, w_kind, w_shape, bias, up_bias, group_sizes, *rest
    if can_skip_dispatcher((*x, *w, *up, bias, up_bias, group_sizes, rest[-2])):
        y: Tensor = _run_product(arguments)
        return y
    call = _call(*arguments)
    return differentiable(call, further) if needs_gradient(call.differentiated) else further()


@_untraced
def _run_product(arguments: tuple[Any, ...]) -> Tensor:
    x, x_kind, _, w, up, w_kind, w_shape, bias, up_bias, sizes = arguments[:10]
    activation, x_format, _, x_tensor_scale, out_dtype = arguments[10:]
    if x_tensor_scale is None and not x_format:
        facts = activation, x_format, out_dtype
        y = replay_call(x, x_kind, w, up, w_kind, w_shape, bias, up_bias, sizes, facts)
        if y is not None:
            return y
    return run_call(_call(*arguments))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    call = _call(*inputs)
    ctx.facts = forward_facts(call)
    ctx.save_for_backward(*tensors_of(call))
    ctx.needs = [tensor is not None and tensor.requires_grad for tensor in call.differentiated]
    ctx.lengths = [len(each) if isinstance(each, (list, tuple)) else None for each in inputs]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """One for each argument; of a list, one for each of its tensors."""
    dx, *of_biases = gradients(ctx, grad, ctx.needs)
    found: list[Any] = [None if length is None else [None] * length for length in ctx.lengths]
    for place in (2, 6, 12):  # lists of numbers
        found[place] = None if ctx.lengths[place] else []
    found[0][0], found[7 : 7 + len(of_biases)] = dx, of_biases
    return tuple(found)


# --- the gradient of x ---------------------------------------------------------------------------


def _input_grad(
    grad: Tensor,
    w: Sequence[Tensor],
    kind: str,
    shape: Sequence[int],
    group_sizes: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    dx: Tensor = _run_input_grad(grad, Operand(w, kind, shape), group_sizes, dtype)
    return dx


def _fake_input_grad(
    grad: Tensor, w: Sequence[Tensor], kind: str, shape: Sequence[int], *rest: Any
) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], shape[-1]), dtype=rest[-1])


def _differentiable_input_grad(
    further: Callable[[], Tensor],
    grad: Tensor,
    w: Sequence[Tensor],
    kind: str,
    shape: Sequence[int],
    group_sizes: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    if can_skip_dispatcher((grad, *w, group_sizes)):
        return _input_grad(grad, w, kind, shape, group_sizes, dtype)
    if not needs_gradient([grad]):
        return further()
    return differentiable_input_grad(grad, Operand(w, kind, shape), group_sizes, further)


_ops = OpLibrary("blockscale", below_autograd)
input_grad = _ops.define_input_grad()
matmul, gated_matmul = _ops.define_product("matmul"), _ops.define_product("gated_matmul")
grouped_matmul = _ops.define_product("grouped_matmul")
grouped_gated_matmul = _ops.define_product("grouped_gated_matmul")
