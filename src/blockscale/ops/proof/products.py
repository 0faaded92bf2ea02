"""Known products: every verb of the matmul family, and the gradient of one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Generator, Tensor

from blockscale.kernels import Parts
from blockscale.numerics import branch, cast, group_slices, input_gradient, parse_activation
from blockscale.ops.agreement import disagreement, gated_error, of_two, product_error
from blockscale.ops.proof.case import Case
from blockscale.ops.proof.operands import (
    Coded,
    integers,
    is_lossless,
    lossless,
    numbers,
    one_hot,
    rounded,
)
from blockscale.problem import Problem, dtype_named, parse_kind

_DEFINITION = "the definition"


def product_cases(problem: Problem) -> Iterator[Case]:
    """Lossless operands first: what they find wrong is wrong beyond any tolerance."""
    formats = [problem.w_kind.format] + ([problem.x_kind.format] if "@" in problem.x else [])
    for name in ("lossless", "one-hot", "random"):
        if name != "lossless" or all(map(is_lossless, formats)):
            made = _gradient if problem.verb == "input_grad" else _product
            yield made(problem, name)


def _product(problem: Problem, name: str) -> Case:
    generator = Generator().manual_seed(2)
    rows, n, k = problem.rows, problem.n, problem.k
    weights = [_weight(problem, name, number) for number in range(2 if problem.gated else 1)]
    biases = tuple(
        integers(problem.groups, n, most=8, generator=generator) / 4 if problem.bias else None
        for _ in weights
    )
    sizes = _group_sizes(problem)
    x, x_values, x_scale = _x(problem, name, (rows, k), generator)
    expected = torch.zeros(rows, n, dtype=torch.float64)
    allowed = torch.zeros(rows, n)
    for group, (start, stop) in enumerate(_slices(problem, sizes)):
        of_rows = None if x_scale is None else x_scale[start:stop]
        branches = [
            branch(
                x_values[start:stop],
                weight.values[group],
                of_rows,
                _scale_of(weight, group),
                None if bias is None else bias[group],
            )
            for weight, bias in zip(weights, biases, strict=True)
        ]
        errors = [
            product_error(problem, _scaled(x_values[start:stop], of_rows), _matrix(weight, group))
            for weight in weights
        ]
        error = errors[0]
        value = branches[0]
        if problem.gated:
            error = gated_error(value.float(), error, branches[1].float(), errors[1])
            value = parse_activation(problem.activation)(*branches)
        expected[start:stop], allowed[start:stop] = value, of_two(error)
    return Case(
        f"{name} operands",
        problem,
        tuple(weight.parts for weight in weights),
        (x, biases, sizes),
        (torch.full((rows, n), torch.nan, dtype=problem.out_dtype),),
        partial(_trouble, problem, expected, _exactly(problem, name, allowed)),
    )


def _gradient(problem: Problem, name: str) -> Case:
    generator = Generator().manual_seed(2)
    weight, sizes = _weight(problem, name, 0), _group_sizes(problem)
    shape = (problem.rows, problem.n)
    grad = _plain(name, shape, generator).to(dtype_named(problem.x))
    expected = torch.zeros(problem.rows, problem.k, dtype=torch.float64)
    allowed = torch.zeros(problem.rows, problem.k)
    for group, (start, stop) in enumerate(_slices(problem, sizes)):
        rows = grad[start:stop]
        expected[start:stop] = input_gradient(rows, weight.values[group], _scale_of(weight, group))
        allowed[start:stop] = of_two(product_error(problem, rows.float(), _matrix(weight, group).T))
    return Case(
        f"{name} operands",
        problem,
        (weight.parts,),
        (grad, (None,), sizes),
        (torch.full((problem.rows, problem.k), torch.nan, dtype=problem.out_dtype),),
        partial(_trouble, problem, expected, _exactly(problem, name, allowed)),
    )


def _exactly(problem: Problem, name: str, allowed: Tensor) -> Tensor | None:
    """None where not a bit may differ: sums are exact in float32, and cast once. An activation is
    not exact."""
    return None if name == "lossless" and not problem.gated else allowed


def _trouble(
    problem: Problem, expected: Tensor, allowed: Tensor | None, outputs: tuple[Tensor, ...]
) -> str | None:
    (ours,) = outputs
    if allowed is not None:
        return disagreement(problem, ours, expected, allowed, _DEFINITION)
    wanted = cast(expected, problem.out_dtype)
    wrong = ours != wanted  # also true of NaN
    if not bool(wrong.any()):
        return None
    row, column = (int(each) for each in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} values are wrong: at [{row}, {column}] "
        f"{ours[row, column].item():.6g} where {_DEFINITION} has exactly "
        f"{wanted[row, column].item():.6g}"
    )


def _weight(problem: Problem, name: str, number: int) -> Coded:
    """number: 0, or 1 for the weights of up."""
    shape = problem.groups, problem.n, problem.k
    return _matrices(problem.w, shape, name == "lossless", number)


@lru_cache(maxsize=12)  # products of several rows share them
def _matrices(kind: str, shape: tuple[int, int, int], exact: bool, seed: int) -> Coded:
    generator = Generator().manual_seed(seed)
    if exact:
        return lossless(shape, parse_kind(kind), per_row=False, generator=generator)
    return rounded(numbers(*shape, generator=generator), parse_kind(kind), per_row=False)


def _x(
    problem: Problem, name: str, shape: tuple[int, int], generator: Generator
) -> tuple[Any, Tensor, Tensor | None]:
    """What a launch is given, its values in float64 and its tensor scales."""
    if "@" not in problem.x:
        x = _plain(name, shape, generator).to(dtype_named(problem.x))
        return x, x.double(), None
    rows, k = shape
    matrices = 1 if problem.ragged else problem.groups  # blocked scales of each are padded
    if name == "lossless":
        whole = (matrices, rows // matrices, k)
        coded = lossless(whole, problem.x_kind, per_row=True, generator=generator)
    else:
        values = _plain(name, shape, generator).reshape(matrices, -1, k)
        coded = rounded(values, problem.x_kind, per_row=True)
    codes, scale, tensor_scale, table = coded.parts
    each = None if tensor_scale is None else tensor_scale.flatten()
    if problem.x_kind.layout.scales == "rows":
        scale = scale.flatten(0, 1)
    parts = Parts(codes.flatten(0, 1), scale, each, table)
    return parts, coded.values.flatten(0, 1), each


def _plain(name: str, shape: tuple[int, int], generator: Generator) -> Tensor:
    if name == "lossless":
        return integers(*shape, most=2, generator=generator)
    return one_hot(*shape) if name == "one-hot" else numbers(*shape, generator=generator)


def _scale_of(weight: Coded, group: int) -> Tensor | None:
    scale = weight.parts.tensor_scale
    return None if scale is None else scale[group]


def _matrix(weight: Coded, group: int) -> Tensor:
    """float32 [n, k], with its tensor scale."""
    return _scaled(weight.values[group], _scale_of(weight, group))


def _scaled(values: Tensor, scale: Tensor | None) -> Tensor:
    """float32; scale: of everything, or of each row."""
    if scale is None:
        return values.float()
    return (values * (scale[:, None] if scale.dim() else scale)).float()


def _group_sizes(problem: Problem) -> Tensor | None:
    """Rows of four experts: the second has none, and the last row belongs to nobody."""
    if not problem.ragged:
        return None
    given = max(problem.m - 1, 1)
    sizes = [given // 3, 0, given - given // 3 - given // 4, given // 4]
    return torch.tensor(sizes, dtype=torch.int32)


def _slices(problem: Problem, sizes: Tensor | None) -> list[tuple[int, int]]:
    counts = [problem.m] * problem.groups if sizes is None else sizes.tolist()
    return group_slices(counts, problem.rows)
