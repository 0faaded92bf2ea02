"""Launch plans: what a call on some weights has found out, for calls that differ in x alone.

Checking a call and choosing its kernel takes longer than a small product. So the kernel's launch is
bound to the weights once, and the plan is kept with them.

A launch has the addresses of the weights in it. Torch can move a tensor to other memory
(`Tensor.data = ...`, `set_`, `untyped_storage().resize_`), so a plan remembers where each tensor
was and is of no use once one has moved.

Sizes are given to torch one by one: it takes a microsecond longer to read a tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels import Launch, Parts
from blockscale.ops.choose import choose
from blockscale.ops.matmul import MatmulCall, quantizes_x
from blockscale.ops.operand import Operand, as_groups, as_rows
from blockscale.ops.rule import Choice
from blockscale.ops.validate import check_allocated
from blockscale.problem import Problem

_data_ptr = Tensor.data_ptr


@dataclass(frozen=True)
class Plan:
    launch: Launch
    choice: Choice
    problem: Problem
    x_rows: tuple[int, int] | None  # where x has other dimensions
    bias_shape: tuple[int, int] | None  # where there are biases
    out_rows: tuple[int, int]
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype
    kept: tuple[Any, ...]  # what must live as long
    tensors: tuple[Tensor, ...]  # of the weights, as their owners hold them
    addresses: tuple[int, ...]  # of these, which the launch has in it

    @property
    def is_in_place(self) -> bool:
        """Whether the weights are where they were."""
        return tuple(map(_data_ptr, self.tensors)) == self.addresses

    @property
    def is_current(self) -> bool:
        """Whether the same kernel would be chosen again: one may have been turned off since."""
        return choose(self.problem) is self.choice

    def __call__(
        self, x: Tensor | Operand, biases: tuple[Tensor | None, ...], group_sizes: Tensor | None
    ) -> Tensor:
        """Of a call like the one that was planned; x is an Operand where it is quantised."""
        # Not a view, which torch would not let anyone change in place under gradients.
        out = torch.empty(*self.out_shape, dtype=self.out_dtype, device=x.device)
        rows: Tensor | Parts
        if isinstance(x, Operand):
            rows = as_rows(x)
        else:
            rows = x if self.x_rows is None else x.reshape(*self.x_rows)
        if (shape := self.bias_shape) is not None:
            biases = tuple([None if bias is None else bias.reshape(*shape) for bias in biases])
        written = out if self.x_rows is None else out.view(*self.out_rows)
        self.launch(rows, biases, group_sizes, written)
        return out


def make_plan(call: MatmulCall, kept: tuple[Any, ...], frozen: bool = False) -> Plan | None:
    """None where there is nothing to run, x is to be quantised before, or weights would have to be
    copied: a call can let its copy go, a plan would keep it.

    frozen: what the owners of all weights promise; see `kernels.contract`
    """
    call.validate()
    for weight in call.weights:
        check_allocated(call.verb, weight)
    problem = call.problem()
    choice = choose(problem)
    if not (problem.rows and problem.n):
        return None
    if call.x_format and not quantizes_x(problem):
        return None
    if why_copied(call, choice) is not None:
        return None
    weights = tuple(as_groups(weight) for weight in call.weights)
    tensors = tuple(tensor for weight in call.weights for tensor in weight.tensors)
    return Plan(
        launch=choice.kernel.bind(problem, choice.config, weights, frozen),
        choice=choice,
        problem=problem,
        x_rows=None if len(call.x.shape) == 2 else (problem.rows, problem.k),
        bias_shape=(problem.groups, problem.n) if problem.bias else None,
        out_rows=(problem.rows, problem.n),
        out_shape=tuple(call.out_shape),
        out_dtype=call.out_dtype,
        kept=kept,
        tensors=tensors,
        addresses=tuple(map(_data_ptr, tensors)),
    )


def why_copied(call: MatmulCall, choice: Choice) -> str | None:
    """Why the kernel that runs copies weights at every call; None where it takes them as they
    are."""
    alignment = choice.kernel.bind(call.problem(), choice.config).alignment
    found = (as_groups(weight).why_copied(alignment) for weight in call.weights)
    return next(filter(None, found), None)
