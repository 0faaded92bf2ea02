"""Plans of calls that know their weights as bare tensors: an op's, and those of a backward.

A QTensor keeps the plans of the calls on it. An op is given tensors, whose owner it does not know
and must not outlive: its plans hold addresses and no weights. Weights here count as not frozen, so
that a launch depends on their addresses and on what else is in the key, and on nothing that they
hold. Other weights that come to lie in the same memory may take over such a plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.kernels import Launch
from blockscale.ops.choose import Choice, choose
from blockscale.ops.matmul import MatmulCall, run_checked
from blockscale.ops.operand import Operand, as_groups
from blockscale.ops.plan import Plan, make_plan
from blockscale.ops.replay import keep_replay, run_replay
from blockscale.ops.validate import check_allocated
from blockscale.problem import Problem, dtype_name
from blockscale.runtime import checks_enabled, device_of, is_deterministic

_MOST = 4096  # weights, and gradients: more would be addresses that do not come back
_MOST_PLANS = 256  # of a weight


class _Known(NamedTuple):
    """Of calls on some weights."""

    plans: dict[Hashable, Plan | None]
    replays: list[Any]


class _GradientPlan(NamedTuple):
    problem: Problem
    choice: Choice
    launch: Launch | None  # where it holds no weights

    @property
    def is_current(self) -> bool:
        return choose(self.problem) is self.choice


_known: dict[Hashable, _Known] = {}
_gradients: dict[Hashable, _GradientPlan] = {}


def replay_call(
    x: Sequence[Tensor],
    x_kind: str,
    w: Sequence[Tensor],
    up: Sequence[Tensor],
    w_kind: str,
    w_shape: Sequence[int],
    bias: Tensor | None,
    up_bias: Tensor | None,
    group_sizes: Tensor | None,
    facts: tuple[str, str, torch.dtype],  # activation, x_format, out_dtype
) -> Tensor | None:
    """A call like one before it; None where it takes more than that."""
    if run_replay is None or x_kind:
        return None
    known = _known.get((*facts, w_kind, *w_shape, *_places(w), *_places(up)))
    if known is None or not known.replays:
        return None
    return run_replay(known.replays, x[0], bias, up_bias, group_sizes, None, None)


def run_call(call: MatmulCall) -> Tensor:
    """Check a call and run it; one that is like an earlier one is not checked again."""
    if call.x_tensor_scale is not None or _reads_sizes(call):
        return run_checked(call)
    known, x, sizes = _known_of(call), call.x, call.group_sizes
    key = is_deterministic(), *_facts((*x.tensors, *call.biases, sizes))
    plan = _plan(call, known, (x.kind, *x.shape, *key))
    if plan is None:
        return run_checked(call)
    y = plan(x.tensors[0] if x.is_plain else x, tuple(call.biases), sizes)
    if run_replay is not None and x.is_plain and not call.x_format:
        keep_replay(known.replays, key, plan, x.tensors[0], call.biases, sizes, None, None)
    return y


def _reads_sizes(call: MatmulCall) -> bool:
    """Whether group sizes are looked at, call by call."""
    sizes = call.group_sizes
    return sizes is not None and (sizes.device.type == "cpu" or checks_enabled())


def _known_of(call: MatmulCall) -> _Known:
    first, second = call.weights[0], call.weights[1:]
    places = *_places(first.tensors), *_places(second[0].tensors if second else ())
    key = call.activation, call.x_format, call.out_dtype, first.kind, *first.shape, *places
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[key] = _Known({}, [])
    return known


def _places(weight: Sequence[Tensor]) -> list[Hashable]:
    """All that a launch has of a weight."""
    found: list[Hashable] = []
    for tensor in weight:
        found += tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    return found


def _facts(tensors: Sequence[Tensor | None]) -> list[Hashable]:
    found: list[Hashable] = []
    for tensor in tensors:
        found += (None,) if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
    return found


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
    shape = grad.shape
    sizes = None if group_sizes is None else (group_sizes.shape, group_sizes.dtype)
    facts = shape, grad.dtype, grad.device, sizes, dtype, is_deterministic()
    key = *facts, weight.kind, *weight.shape, *_places(weight.tensors)
    plan = _gradients.get(key)
    if plan is None or not plan.is_current:
        if len(_gradients) >= _MOST:
            _gradients.clear()
        plan = _gradients[key] = _plan_gradient(grad, weight, group_sizes, dtype)
    problem, k = plan.problem, weight.shape[-1]
    out = torch.empty((*shape[:-1], k), dtype=dtype, device=grad.device)
    if problem.rows:  # without weights (n = 0) the gradient is zero, which the kernel writes
        launch = plan.launch or _bind_gradient(problem, plan.choice, weight)
        if grad.dim() == 2:
            launch(grad, group_sizes, out)
        else:
            rows = problem.rows
            launch(grad.reshape(rows, problem.n), group_sizes, out.view(rows, k))
    return out


def _plan_gradient(
    grad: Tensor, weight: Operand, group_sizes: Tensor | None, dtype: torch.dtype
) -> _GradientPlan:
    groups, ragged = weight.shape[0] if len(weight.shape) == 3 else 1, group_sizes is not None
    rows = prod(grad.shape[:-1])
    problem = Problem(
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
    choice = choose(problem)
    launch = _bind_gradient(problem, choice, weight) if rows else None
    return _GradientPlan(problem, choice, None if launch and launch.holds_weights else launch)


def _bind_gradient(problem: Problem, choice: Choice, weight: Operand) -> Launch:
    check_allocated(problem.verb, weight)
    return choice.kernel.bind(problem, choice.config, (as_groups(weight),))
