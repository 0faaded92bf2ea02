"""How a call finds what a call like it has found out before: its plan, or a replay of it.

Both are kept with the first weight. Every call comes this way first, and a small product is over
sooner than a call is checked: what can be asked once is asked once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from blockscale import ops
from blockscale.formats import Format
from blockscale.numerics import Activation
from blockscale.runtime import checks_enabled, is_deterministic
from blockscale.runtime.torch_private import counts_versions
from blockscale.tensor.qtensor import QTensor
from blockscale.tensor.row_scales import RowScaledPlan, has_row_scales, plan_row_scaled

_MOST_PLANS = 256  # kept with a weight: more would be shapes that do not come back

# Asked at every call, so found once.
_run_replay, _is_compiling = ops.run_replay, torch.compiler.is_compiling
_counts_versions = counts_versions()


def replay_call(
    x: Tensor | QTensor,
    w: QTensor,
    bias: Tensor | None,
    up_bias: Tensor | None = None,
    group_sizes: Tensor | None = None,
    up: QTensor | None = None,
    activation: str | Activation | None = None,
) -> Tensor | None:
    """A call like one before it; None where it takes more than that."""
    if _run_replay is None or _is_compiling() or w.__class__ is not QTensor:
        return None
    return _run_replay(w.replays, x, bias, up_bias, group_sizes, up, activation)


def cached_plan(key: Hashable, weights: list[QTensor]) -> ops.Plan | RowScaledPlan | None:
    """The plan of such a call, if there is one by now."""
    plan: ops.Plan | RowScaledPlan | None = weights[0].plans.get(key)
    if plan is None:
        return None
    if not plan.is_in_place:
        _forget(weights[0])
        return None
    return plan if plan.is_current else None


def _forget(w: QTensor) -> None:
    """What was found out before its memory moved: the rest would keep the old memory alive."""
    w.plans.clear()
    w.replays.clear()


def keep_new_plan(
    key: Hashable, call: ops.MatmulCall, weights: list[QTensor]
) -> ops.Plan | RowScaledPlan | None:
    """For calls to come; that there can be none is kept as well."""
    plans = weights[0].plans
    if key in plans and plans.get(key) is None:
        return None
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    frozen = _counts_versions and all(weight.frozen for weight in weights)
    plan: ops.Plan | RowScaledPlan | None
    if has_row_scales(weights[0]) and call.group_sizes is None and len(weights) == 1:
        plan = plan_row_scaled(call, weights[0], frozen)
    else:
        plan = ops.make_plan(call, tuple(weights[1:]), frozen)
    plans[key] = plan
    return plan


def keep_forward(key: Hashable, call: ops.MatmulCall, weights: list[QTensor]) -> None:
    """What a backward has to know of calls to come, of which `call` was checked."""
    call.validate()
    forwards = weights[0].forwards
    if len(forwards) >= _MOST_PLANS:
        forwards.clear()
    forwards[key] = ops.forward_facts(call)


def plan_key(
    x: Tensor | QTensor,
    weights: list[QTensor],
    biases: list[Tensor | None],
    group_sizes: Tensor | None,
    activation: str | Activation | None,
    x_format: Format | str | None,
    out_dtype: torch.dtype | None,
) -> Hashable | None:
    """What calls on the same weights must agree in to share a plan; None for those without."""
    if weights[0].__class__ is not QTensor or not (
        (activation is None or isinstance(activation, (str, Activation)))
        and (out_dtype is None or isinstance(out_dtype, torch.dtype))
    ):
        return None  # an error, which is somebody else's to raise
    if group_sizes is not None and (not isinstance(group_sizes, Tensor) or _sizes_are_read(x)):
        return None  # likewise
    up = None if len(weights) == 1 else (id(weights[1]), _facts(biases[1]))
    of_x = _facts(x) if isinstance(x, Tensor) else _facts_of_codes(x)
    bias, sizes = _facts(biases[0]), _facts(group_sizes)
    return of_x, x_format, out_dtype, activation, is_deterministic(), bias, up, sizes


def _facts(tensor: Tensor | None) -> tuple[Any, ...] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _facts_of_codes(x: QTensor) -> tuple[Any, ...]:
    return x.operand.kind, x.shape, _facts(x.codes), _facts(x.tensor_scale)


def _sizes_are_read(x: Tensor | QTensor) -> bool:
    """Whether group sizes must be looked at, call by call."""
    return x.device.type != "cuda" or checks_enabled()
