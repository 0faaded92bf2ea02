"""What candidates are timed on: random operands of a problem, the same in every run.

A ring of them, so that weights come from memory: copies of the weights, and of a ragged problem at
least as many routings, each of which meets other experts. All experts hold the same matrix, in
memory of their own, so that one matrix tells what every row should give.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from blockscale.formats import Format
from blockscale.kernels import Parts
from blockscale.layouts import canonical
from blockscale.ops.operand import Operand, as_rows, plain
from blockscale.ops.quantize import (
    derive_tensor_scale,
    kept_codebook,
    quantize_activations,
    repack,
    run_quantize,
)
from blockscale.problem import Kind, Problem, dtype_named

_MOST_ENTRIES = 256  # weights so small that these fit into a cache gain nothing by more
# Routings that a GPU meets, which runs all groups at once: whether the largest has more rows than a
# tile can make a fifth of the time, and one routing in particular says little of others.
_FEWEST_ROUTINGS = 32


@dataclass(frozen=True)
class Entry:
    """What differs from call to call."""

    weights: tuple[Parts, ...]  # of [groups, n, k]: one, or gate and up
    group_sizes: Tensor | None


@dataclass(frozen=True)
class Operands:
    x: Operand  # [rows, k]
    matrices: tuple[Operand, ...]  # one, or gate's and up's: [n, k], canonical
    ring: list[Entry]

    @property
    def rows(self) -> Tensor | Parts:
        return as_rows(self.x)


def make_operands(
    problem: Problem, device: torch.device, ring_bytes: int, group_sizes: Tensor | None = None
) -> Operands:
    """Of a ragged problem with these rows in its groups, or with rows spread at random."""
    generator = Generator(device).manual_seed(0)
    matrices = tuple(_matrix(problem, generator) for _ in range(2 if problem.gated else 1))
    placed = tuple(_placed(each, problem) for each in matrices)
    return Operands(
        _x(problem, generator), matrices, _ring(problem, placed, ring_bytes, group_sizes)
    )


def _x(problem: Problem, generator: Generator) -> Operand:
    x = torch.randn(problem.rows, problem.k, generator=generator, device=generator.device)
    if "@" not in problem.x:
        return plain(x.to(dtype_named(problem.x)))
    format = problem.x_kind.format
    return quantize_activations(x, format.spec, format.codebook, None)


def _matrix(problem: Problem, generator: Generator) -> Operand:
    """Weights for which products are about as large as x."""
    format = problem.w_kind.format
    shape, device = (problem.n, problem.k), generator.device
    values = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
    values *= problem.k**-0.5
    return _quantized(values, format)


def _quantized(values: Tensor, format: Format) -> Operand:
    kind = Kind(format, canonical(format))
    scalar = derive_tensor_scale(values, format, per_row=False) if format.has_tensor_scale else None
    table = kept_codebook(format.codebook, values.device) if format.is_codebook else None
    codes, scale = run_quantize(values, kind, "absmax", scalar, table)
    tensors = [part for part in (codes, scale, scalar, table) if part is not None]
    return Operand(tensors, str(kind), list(values.shape))


def _placed(matrix: Operand, problem: Problem) -> Parts:
    """In the problem's layout, once for each group."""
    format, layout = problem.w_kind
    parts, shape = matrix.parts(), (problem.n, problem.k)
    codes, scale = repack(parts.codes, parts.scale, format, shape, matrix.parsed.layout, layout)
    scalar = None if parts.tensor_scale is None else parts.tensor_scale.repeat(problem.groups)
    return Parts(_repeat(codes, problem.groups), _repeat(scale, problem.groups), scalar, parts[3])


def _repeat(storage: Tensor, groups: int) -> Tensor:
    return storage.repeat(groups, *(1 for _ in storage.shape))


def _ring(
    problem: Problem, weights: tuple[Parts, ...], ring_bytes: int, group_sizes: Tensor | None
) -> list[Entry]:
    total = sum(part.codes.nbytes + part.scale.nbytes for part in weights)
    if group_sizes is None:
        experts = problem.weights_read // len(weights)
    else:
        experts = int(group_sizes.count_nonzero())
    touched = max(total * experts // problem.groups, 1)
    device = weights[0].codes.device
    count = entries_of_a_ring(problem, ring_bytes, touched, device.type)
    copies = [weights] + [
        tuple(part._replace(codes=part.codes.clone(), scale=part.scale.clone()) for part in weights)
        for _ in range(min(-(-ring_bytes // total), count) - 1)
    ]
    if group_sizes is None:
        routings = [_routing(problem, device, i) for i in range(count)]
    else:
        routings = [_exchanged(group_sizes, device, i // len(copies)) for i in range(count)]
    return [Entry(copies[i % len(copies)], routing) for i, routing in enumerate(routings)]


def entries_of_a_ring(problem: Problem, ring_bytes: int, touched: int, device: str) -> int:
    """touched: bytes of weights that a call reads"""
    fewest = _FEWEST_ROUTINGS if problem.ragged and device == "cuda" else 1
    return max(fewest, min(-(-ring_bytes // touched), _MOST_ENTRIES))


def _routing(problem: Problem, device: torch.device, seed: int) -> Tensor | None:
    """Rows of each expert: every row goes to one at random."""
    if not problem.ragged:
        return None
    generator = Generator().manual_seed(seed)
    expert = torch.randint(problem.groups, (problem.m,), generator=generator)
    return torch.bincount(expert, minlength=problem.groups).to(device, torch.int32)


def _exchanged(group_sizes: Tensor, device: torch.device, turn: int) -> Tensor:
    """As given in the first turn of the ring, on other experts in later ones: sizes that leave most
    experts out would meet the same weights again, and find them in the cache."""
    sizes = group_sizes.to(device, torch.int32)
    if turn == 0:
        return sizes
    order = torch.randperm(len(sizes), generator=Generator().manual_seed(turn))
    return sizes[order.to(device)]
