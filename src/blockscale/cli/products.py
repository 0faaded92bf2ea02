"""The products that a checkpoint's quantised weights will be used in."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from blockscale import ops
from blockscale.checkpoint import Checkpoint
from blockscale.formats import Format
from blockscale.problem import Kind, Problem
from blockscale.runtime import Device

# Experts are stored one by one, or all of them in one tensor; `load_into` reads both as one layer.
_ONE_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.")
_DOWN = re.compile(r"\.(down|down_proj|w2|output_linear)\b")  # the product that is not gated
_GATE_AND_UP = re.compile(r"\.(gate_up_proj|input_linear)\b")  # rows of both in one tensor


@dataclass(frozen=True)
class Products:
    """What is known of the calls beforehand."""

    rows: tuple[int, ...]
    dtype: str  # of x and the results
    activation: str  # of gated experts
    device: Device

    def of(self, checkpoint: Checkpoint) -> list[Problem]:
        """One for each different product, in the order of the layers."""
        experts = _experts(checkpoint)
        found: dict[Problem, None] = {}
        for name, stored in checkpoint.tensors.items():
            if stored.format is None:
                continue
            n, k = stored.shape[-2:]
            one = _ONE_EXPERT.match(name)
            groups = len(experts[one[1]]) if one else stored.shape[0] if stored.shape[2:] else 0
            bias = any(each in checkpoint.tensors for each in _bias_names(name))
            if groups and _GATE_AND_UP.search(name):
                n //= 2
            gated = bool(groups) and not _DOWN.search(name)
            for m in self.rows:
                found[self.problem((m, n, k), groups, stored.format, gated, bias)] = None
        return list(found)

    def problem(
        self, shape: tuple[int, int, int], experts: int, format: Format, gated: bool, bias: bool
    ) -> Problem:
        """Of one product, with prepared weights; `experts` is 0 where there are none."""
        m, n, k = shape
        return Problem(
            verb=f"{'grouped_' if experts else ''}{'gated_' if gated else ''}matmul",
            m=m,
            n=n,
            k=k,
            groups=experts or 1,
            ragged=bool(experts),
            gated=gated,
            bias=bias,
            activation=self.activation if gated else "",
            x=self.dtype,
            w=str(Kind(format, ops.prepared_layout(format, self.device))),
            out=self.dtype,
            device=self.device,
        )


def with_x(problems: list[Problem], format: Format | None, command: str) -> list[Problem]:
    """The same with x quantised to a format, where one is given."""
    if format is None:
        return problems
    for problem in problems:
        ops.check_block(command, "x", problem.k, format)
    return [_with_quantised_x(problem, format) for problem in problems]


def _with_quantised_x(problem: Problem, format: Format) -> Problem:
    """Both operands as they are prepared for each other."""
    weights = problem.w_kind.format
    kind = Kind(weights, ops.prepared_layout(weights, problem.device, format))
    place = ops.x_layout(format, kind, problem.device)
    return replace(problem, x=str(Kind(format, place)), w=str(kind))


def _experts(checkpoint: Checkpoint) -> dict[str, set[str]]:
    """The numbers of the experts of each layer that stores them one by one."""
    numbers = defaultdict(set)
    for match in filter(None, map(_ONE_EXPERT.match, checkpoint.tensors)):
        numbers[match[1]].add(match[2])
    return numbers


def _bias_names(name: str) -> tuple[str, str]:
    return f"{name.removesuffix('weight')}bias", f"{name}_bias"
