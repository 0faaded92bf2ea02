"""From tokens to rows that are sorted by expert, and back: nothing waits for the GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def sort_by_expert(index: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """index [..., top] -> for each row, in order of its expert, its place in `index`; and how many
    rows each expert has.

    Numbers that no expert has stand for nobody: their rows come last, where grouped products
    leave zeros.
    """
    index = index.masked_fill(index < 0, num_experts)
    expert, order = index.flatten().sort()
    every = torch.arange(num_experts, dtype=expert.dtype, device=expert.device)
    ends = torch.searchsorted(expert, every, right=True)
    return order, ends.diff(prepend=ends.new_zeros(1))


def gather_rows(x: Tensor, order: Tensor, top: int) -> Tensor:
    """x [tokens, hidden] -> [tokens * top, hidden], in order."""
    return x[order // top]


def sum_of_experts(y: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """y [tokens * top, hidden], in order; weights [..., top] -> [..., hidden]."""
    places = torch.arange(len(order), device=order.device)
    back = torch.empty_like(order).scatter_(0, order, places)
    return (y[back].reshape(*weights.shape, y.shape[-1]) * weights[..., None]).sum(-2)


def experts_of_stacked(x: Tensor, num_experts: int) -> Tensor:
    """x [experts * tokens, hidden], the rows of each expert together -> the expert of each row.

    Rows of zeros, which stand for tokens that were not sent to it, have none.
    """
    every = torch.arange(num_experts, device=x.device).repeat_interleave(len(x) // num_experts)
    return every.masked_fill(~x.any(-1), num_experts)
