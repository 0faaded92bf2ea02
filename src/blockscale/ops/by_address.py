"""Plans of calls that know their weights as bare tensors: an op's, and those of a backward.

A QTensor keeps the plans of the calls on it. An op is given tensors, whose owner it does not know
and must not outlive: its plans hold addresses and no weights. Weights here count as not frozen, so
that a launch depends on their addresses and on what else is in the key, and on nothing that they
hold. Other weights that come to lie in the same memory may take over such a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.ops.arguments import call_of, text_of
from blockscale.ops.choose import choose
from blockscale.ops.matmul import MatmulCall, run_checked
from blockscale.ops.operand import Operand, as_groups
from blockscale.ops.plan import Plan, make_plan
from blockscale.ops.replay import bytes_of_places, keep_replay, run_replay, skip_dispatcher
from blockscale.ops.validate import check_allocated, check_gradient
from blockscale.problem import Problem, dtype_name
from blockscale.runtime import checks_enabled, device_of, is_deterministic

_MOST = 4096  # weights and their gradients: more would be addresses that do not come back
_MOST_PLANS = 256  # of a weight


class _Known(NamedTuple):
    """Of calls on some weights."""

    plans: dict[Hashable, Plan | None]
    replays: list[Any]


_known: dict[Hashable, _Known] = {}


def skip_to_kernel(op: Any, kernel: Callable[..., Tensor]) -> None:
    """From calls of an op that nobody watches; `kernel` is `run_arguments`."""
    skip_dispatcher(op, kernel, _known)


def run_arguments(
    x: Tensor,
    w: Sequence[Tensor],
    text: str,
    n: int,
    k: int,
    bias: Tensor | None,
    up_bias: Tensor | None,
    group_sizes: Tensor | None,
    x_tensor_scale: Tensor | None,
    x_rest: Sequence[Tensor] | None,
    x_codebook: Sequence[float] | None,
) -> Tensor:
    """An op's call, of `arguments.SCHEMA`. Compiled programs come this way at every product: a call
    like one before it is found by what the program holds, and no operand is made of it."""
    known = _known.get((text, n, k, _places(w)))
    if known is not None and x_tensor_scale is None:
        if known.replays and run_replay is not None:
            y = run_replay(known.replays, x, bias, up_bias, group_sizes, None, None)
            if y is not None:
                return y
        if group_sizes is None and x_rest is None:
            key = _key((x, bias, up_bias, None))
            plan = known.plans.get(key)
            if plan is not None and plan.is_current:
                biases = (bias, up_bias) if plan.problem.gated else (bias,)
                return _run_plan(known, key, plan, x, biases, None)
    rest = bias, up_bias, group_sizes, x_tensor_scale, x_rest, x_codebook
    return run_call(call_of(x, w, text, n, k, *rest))


def run_call(call: MatmulCall) -> Tensor:
    """Check a call and run it; one that is like an earlier one is not checked again."""
    if call.x_tensor_scale is not None or _reads_sizes(call):
        return run_checked(call)
    known, x, biases = _known_of(call), call.x, tuple(call.biases)
    up_bias = biases[1] if len(biases) > 1 else None
    key = _key((*x.tensors, biases[0], up_bias, call.group_sizes))
    plan = _plan(call, known, key)
    if plan is None:
        return run_checked(call)
    return _run_plan(known, key, plan, x.tensors[0] if x.is_plain else x, biases, call.group_sizes)


def _run_plan(
    known: _Known,
    key: Hashable,
    plan: Plan,
    x: Tensor | Operand,
    biases: tuple[Tensor | None, ...],
    group_sizes: Tensor | None,
) -> Tensor:
    y = plan(x, biases, group_sizes)
    if run_replay is not None and isinstance(x, Tensor) and not plan.choice.config.quantizes_x:
        keep_replay(known.replays, key, plan, x, biases, group_sizes, None, None)
    return y


def _reads_sizes(call: MatmulCall) -> bool:
    """Whether group sizes are looked at, call by call."""
    sizes = call.group_sizes
    return sizes is not None and (sizes.device.type == "cpu" or checks_enabled())


def _known_of(call: MatmulCall) -> _Known:
    *_, n, k = call.weights[0].shape
    tensors = [tensor for weight in call.weights for tensor in weight.tensors]
    return _known_at((text_of(call), n, k, _places(tensors)))


def _known_at(key: Hashable) -> _Known:
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[key] = _Known({}, [])
    return known


def _places(weights: Sequence[Tensor]) -> Hashable:
    """All that a launch has of weights whose kind is known: with their strides, bytes say the
    shape. An address is of one device."""
    told = None if bytes_of_places is None else bytes_of_places(weights)
    if told is not None:
        return told
    found: list[Hashable] = []
    for tensor in weights:
        found += tensor.data_ptr(), tensor.nbytes, tensor.stride()
    return tuple(found)


def _key(tensors: Sequence[Tensor | None]) -> Hashable:
    """What calls on some weights must agree in to share a plan."""
    found: list[Hashable] = [is_deterministic()]
    for tensor in tensors:
        found += (None,) if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
    return tuple(found)


def _plan(call: MatmulCall, known: _Known, key: Hashable) -> Plan | None:
    """None where there can be none, which is kept as well."""
    plans = known.plans
    found = plans.get(key)
    if found is not None and found.is_current:
        return found
    if found is None and key in plans:
        return None
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    made = make_plan(call, ())
    if made is not None:
        made = None if made.launch.holds_weights else replace(made, tensors=(), addresses=())
    plans[key] = made
    return made


def run_input_grad(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """d/dx of a product: grad [..., n] -> [..., k]."""
    known = _known_at((dtype, weight.kind, *weight.shape, _places(weight.tensors)))
    if known.replays and run_replay is not None:
        dx = run_replay(known.replays, grad, None, None, group_sizes, None, None)
        if dx is not None:
            return dx
    key = _key((grad, group_sizes))
    plan = known.plans.get(key)
    if plan is None or not plan.is_current:
        plan = _plan_gradient(grad, weight, group_sizes, dtype)
        if not plan.problem.rows:
            return torch.empty(*plan.out_shape, dtype=dtype, device=grad.device)
        if plan.launch.holds_weights:
            return plan(grad, (None,), group_sizes)
        if len(known.plans) >= _MOST_PLANS:
            known.plans.clear()
        known.plans[key] = plan
    return _run_plan(known, key, plan, grad, (None,), group_sizes)


def _plan_gradient(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> Plan:
    check_gradient(grad, weight, group_sizes, dtype)
    check_allocated("input_grad", weight)
    problem = _gradient_problem(grad, weight, group_sizes, dtype)
    choice, (rows, n, k) = choose(problem), (problem.rows, problem.n, problem.k)
    return Plan(
        launch=choice.kernel.bind(problem, choice.config, (as_groups(weight),)),
        choice=choice,
        problem=problem,
        x_rows=None if grad.dim() == 2 else (rows, n),
        bias_shape=None,
        out_rows=(rows, k),
        out_shape=(*grad.shape[:-1], k),
        out_dtype=dtype,
        kept=(),
        tensors=(),
        addresses=(),
    )


def _gradient_problem(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> Problem:
    groups, ragged = weight.shape[0] if len(weight.shape) == 3 else 1, group_sizes is not None
    rows = prod(grad.shape[:-1])
    return Problem(
        verb="input_grad",
        m=rows if ragged else rows // max(groups, 1),
        n=weight.shape[-2],
        k=weight.shape[-1],
        groups=groups,
        ragged=ragged,
        deterministic=is_deterministic(),
        x=dtype_name(grad.dtype),
        w=weight.kind,
        out=dtype_name(dtype),
        device=device_of(grad.device),
    )
