"""Replays: plans that C code carries out by itself, csrc/replay, where it was built.

Python makes one of a plan that has settled, out of everything that the plan and the way to it have
looked at. A call that differs in anything goes the way of Python again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.ops.choose import choose
from blockscale.ops.dispatcher import QUESTIONS
from blockscale.ops.plan import Plan
from blockscale.runtime import (
    CHECKS,
    ask_deterministic,
    is_deterministic,
    load_replay,
    torch_private,
)

_extension: Any = load_replay()
_MOST = 16  # kept with a weight, and looked through one by one
_MOST_DIMENSIONS = 8  # of x, that the C code compares

# (replays, x, bias, bias of up, group sizes, up, activation) -> the result, or None where it
# takes Python. It must not be reached while torch compiles, which would trace into it; everything
# else it finds out by itself.
run_replay: Callable[..., Tensor | None] | None = (
    None if isinstance(_extension, str) else _extension.run
)

# (plain tensors) -> where they are in memory and how they lie there; None where C code cannot say.
bytes_of_places: Callable[[Sequence[Tensor]], bytes | None] | None = (
    None if isinstance(_extension, str) else _extension.places
)


def skip_dispatcher(op: Any, kernel: Callable[..., Tensor], known: dict[Any, Any]) -> None:
    """Calls of a product's op that nobody watches go straight to its kernel, or are replayed: those
    of compiled programs. `known` has replays by (text, n, k, places of the weights)."""
    if isinstance(_extension, str) or QUESTIONS is None:
        return
    names = tuple(argument.name for argument in op._schema.arguments)

    def make(dispatched: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = _extension.OpCall(
            known=known,
            kernel=kernel,
            dispatched=dispatched,
            questions=QUESTIONS,
            names=names,
        )
        return made

    torch_private.replace_op_call(op, make)


def keep_replay(
    calls: list[Any],
    key: Hashable,
    plan: Plan,
    x: Tensor,
    biases: Sequence[Tensor | None],
    group_sizes: Tensor | None,
    up: object,
    activation: object,
) -> None:
    """Among `calls`, if there can be one, for `run_replay`; `plan` has just served such a call."""
    version = plan.launch.settled_version
    if version is None or x.dim() > _MOST_DIMENSIONS:
        return
    for each in calls:
        if each.kept is plan and each.version == version:
            return  # there is one, and something about this one call was unusual
    others = [each for each in calls if each.key != key]
    if len(others) >= _MOST:
        # Those of other versions, or whose kernel would not be chosen again, are of no use.
        others = [each for each in others if each.version == version and each.kept.is_current]
        if len(others) >= _MOST:
            return  # first come, first served: making one costs more than many calls by Python
    launch = plan.launch.replay(tuple(biases), group_sizes)
    like = None if launch is None else _prototype(plan, x)
    if launch is None or like is None:
        return
    facts = launch._asdict()
    index = facts.pop("device_index")
    made = _extension.Replay(
        **facts,
        key=key,
        kept=plan,
        weights=plan.tensors,
        addresses=plan.addresses,
        x=x,
        bias=biases[0],
        up_bias=biases[1] if len(biases) > 1 else None,
        group_sizes=group_sizes,
        up=up,
        activation=activation,
        questions=(
            *(QUESTIONS or ()),
            *(() if group_sizes is None else ((_extension.is_on, (CHECKS,), False),)),
            (ask_deterministic, (), is_deterministic()),
            (torch_private.current_device, (), index),
            (choose, (plan.problem,), plan.choice),
        ),
        stream=torch_private.raw_stream,
        stream_arguments=(index,),
        empty=torch.empty_like,
        empty_arguments=(like,),
    )
    calls[:] = [*others, made]  # all at once: other threads may look through them


def _prototype(plan: Plan, x: Tensor) -> Tensor | None:
    """Of the result, with memory for one number: `empty_like` has less to read than `empty`."""
    one = torch.empty((1,) * len(plan.out_shape), dtype=plan.out_dtype, device=x.device)
    like = one.expand(plan.out_shape)
    return like if torch.empty_like(like).is_contiguous() and like.numel() else None
