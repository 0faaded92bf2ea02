"""Known conversions: to codes, from codes, between layouts, and tensor scales. Every bit counts.

The answers are those of the reference kernels, which are the definition, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from blockscale.kernels import KERNELS, Parts
from blockscale.ops.proof.case import Case
from blockscale.ops.proof.operands import numbers, rounded
from blockscale.problem import Problem, dtype_named

_UNWRITTEN = 0xA5  # of bytes that no kernel has written


def conversion_cases(problem: Problem) -> Iterator[Case]:
    yield _CASES[problem.verb](problem, Generator().manual_seed(0))


def _quantize(problem: Problem, generator: Generator) -> Case:
    format, layout = problem.w_kind
    shape = (1, problem.m, problem.k)
    tensor_scale = None
    if format.has_tensor_scale:
        tensor_scale = torch.exp2(numbers(1, problem.m, generator=generator).clamp(-8, 8))
    outputs: list[Tensor | None] = [
        tensor_scale,
        _table(problem),
        torch.full(layout.code_storage_shape(format, shape), _UNWRITTEN, dtype=torch.uint8),
        torch.full(layout.scale_storage_shape(format, shape), _UNWRITTEN, dtype=torch.uint8),
    ]
    if problem.weighted:
        outputs.append(numbers(1, problem.k, generator=generator).abs())
    # Also what is only read counts as an output: it must be left as it is.
    return _case(problem, "random numbers", (), (_x(problem, shape, generator),), tuple(outputs))


def _dequantize(problem: Problem, generator: Generator) -> Case:
    values = numbers(1, problem.m, problem.k, generator=generator)
    parts = rounded(values, problem.w_kind, per_row=True).parts
    out = torch.full((1, problem.m, problem.k), torch.nan, dtype=problem.out_dtype)
    return _case(problem, "random codes", (parts,), (), (out,))


def _repack(problem: Problem, generator: Generator) -> Case:
    values = numbers(problem.groups, problem.m, problem.k, generator=generator)
    parts = rounded(values, problem.x_kind, per_row=False).parts
    return _case(problem, "random codes", (), (parts.codes, parts.scale), None)


def _tensor_scale(problem: Problem, generator: Generator) -> Case:
    out = torch.full((1, problem.m) if problem.rule == "row" else (1,), torch.nan)
    x = _x(problem, (1, problem.m, problem.k), generator)
    return _case(problem, "random numbers", (), (x,), (out,))


_CASES: dict[str, Callable[[Problem, Generator], Case]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "repack": _repack,
    "tensor_scale": _tensor_scale,
}


def _case(
    problem: Problem,
    name: str,
    weights: tuple[Parts, ...],
    inputs: tuple[Any, ...],
    outputs: tuple[Tensor | None, ...] | None,
) -> Case:
    reference = KERNELS[problem.verb][-1]
    launch = reference.bind(problem, reference.configs(problem)[0], weights)
    right = tuple(None if each is None else each.clone() for each in outputs or ())
    returned = launch(*inputs, *right)
    expected = returned if outputs is None else right
    return Case(name, problem, weights, inputs, outputs, partial(_trouble, tuple(expected)))


def _trouble(expected: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...]) -> str | None:
    for number, (ours, right) in enumerate(zip(outputs, expected, strict=True)):
        if ours is None or right is None:
            continue
        if ours.shape != right.shape or ours.dtype != right.dtype:
            return (
                f"output {number} is {ours.dtype} {list(ours.shape)}, not {right.dtype} "
                f"{list(right.shape)}"
            )
        same = (ours == right) | ((ours != ours) & (right != right))
        if not bool(same.all()):
            at = [int(each) for each in (~same).nonzero()[0]]
            return (
                f"{int((~same).sum())} of {same.numel()} values of output {number} are wrong: at "
                f"{at} {ours[tuple(at)].item()} where the definition has {right[tuple(at)].item()}"
            )
    return None


def _x(problem: Problem, shape: tuple[int, int, int], generator: Generator) -> Tensor:
    """Random, with a row of zeros and one of numbers that halve, which meet every tie."""
    x = numbers(*shape, generator=generator)
    if problem.m > 2:
        x[0, 1] = 0.0
        x[0, 2] = torch.exp2(-(torch.arange(problem.k) % 16).float())
    return x.to(dtype_named(problem.x))


def _table(problem: Problem) -> Tensor | None:
    format = problem.w_kind.format
    return torch.tensor(format.codebook) if format.is_codebook else None
