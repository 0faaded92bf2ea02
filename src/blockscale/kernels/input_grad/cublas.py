"""Weights decoded on the GPU to the gradient's dtype, and multiplied by torch's library.

A matrix is decoded as a whole where `decoded.SCRATCH_BYTES` hold it; a larger one in panels of
rows, whose products are summed in float32. The tensor scale is applied to the sum, which is cast
once; where it is in the decoded weights already, or a format has none, and the product fills the
GPU, torch writes the result itself.

Gradients of experts in bfloat16 are one grouped product on GPUs for which torch has it (sm_90,
sm_100) while all experts fit `_GROUPED_BYTES`: group sizes stay on the device. torch's grouped
product writes bfloat16 alone, so tensor scales are in the weights, each of which is rounded once.
Elsewhere the host reads the sizes, and only experts that have rows are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import Launch, Parts, reads_canonical
from blockscale.kernels.cuda.epilogue import Finishing, Sums, epilogue, finish
from blockscale.kernels.cuda.rows import aligned
from blockscale.kernels.decoded import (
    MOST_MATRICES,
    WholeDecoder,
    decode_rows,
    decoder,
    folds_tensor_scale,
    lift_of,
    multiplied_dtype,
    product,
    rows_of_scratch,
    scale_decoded,
    torch_writes,
    unreadable,
)
from blockscale.kernels.panels import panels, rows_of_groups
from blockscale.problem import Problem, dtype_named
from blockscale.runtime.cuda import Build, cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cublas"
reads = reads_canonical

# The experts of Mixtral 8x7B have 0.9 GiB in bfloat16, those of gpt-oss-20b 0.5, of one projection.
_GROUPED_BYTES = 1 << 30
_GROUPED_ALIGNMENT = 8  # numbers in 16 bytes, at whose multiples rows start for torch's product


@dataclass(frozen=True)
class Config(BaseConfig):
    rows: int  # of a matrix, decoded at a time
    matrices: int  # decoded at a time
    grouped: bool  # all experts in one product, whose sizes stay on the device
    doubled: bool  # float32 is multiplied as float64

    def __str__(self) -> str:
        if self.grouped:
            return f"{self.matrices} matrices decoded at a time; torch's grouped product"
        what = f"{self.matrices} matrices" if self.matrices > 1 else f"{self.rows} rows of w"
        as_double = ", float32 as float64 (no setting lets TF32 in)" if self.doubled else ""
        return f"{what} decoded at a time; torch multiplies{as_double}"


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device)
    if refusal is None and problem.deterministic:
        return "leaves the order of sums to torch's library"
    return refusal or unreadable(problem.w_kind)


def configs(problem: Problem) -> list[Config]:
    rows, doubled = rows_of_scratch(problem), multiplied_dtype(problem) == torch.float32
    if _is_one_product(problem):
        return [Config(problem.n, problem.groups, grouped=True, doubled=False)]
    matrices = 1 if problem.ragged else min(rows // max(problem.n, 1), problem.groups)
    matrices = max(1, min(matrices, MOST_MATRICES))
    return [Config(rows, matrices, grouped=False, doubled=doubled)]


def _is_one_product(problem: Problem) -> bool:
    size = problem.groups * problem.n * problem.k * torch.bfloat16.itemsize
    return (
        problem.ragged
        and problem.x == problem.out == "bfloat16"
        and problem.device.capability[0] in (9, 10)
        and 0 < problem.groups <= MOST_MATRICES
        and 0 < size <= _GROUPED_BYTES
        and problem.n % _GROUPED_ALIGNMENT == 0
    )


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights)


class Product(Launch):
    """A call on some weights. Where they are decoded all at once, everything is found out that does
    not change between calls."""

    def __init__(self, problem: Problem, config: Config, weights: tuple[Parts, ...]) -> None:
        self._problem, self._config, self._weights = problem, config, weights
        self._dtype = multiplied_dtype(problem)
        self._decode: WholeDecoder | None = None
        self._finish: Finishing | None = None  # where torch writes no results
        if weights and self._is_whole:
            (weight,), folds = weights, config.grouped or folds_tensor_scale(problem)
            before = weight.tensor_scale if folds else scale_decoded(problem, weight)
            shape = problem.n, problem.k
            self._decode = WholeDecoder(problem.w_kind, weight, shape, self._dtype, before)
            self._finish = None if config.grouped else self._finishing(weight, folds)
            self._weights = ()

    def _finishing(self, weight: Parts, folds: bool) -> Finishing | None:
        problem = self._problem
        after, lift = None if folds else weight.tensor_scale, lift_of(problem)
        if after is None and lift == 1.0 and torch_writes(problem, problem.rows * problem.k):
            return None
        shape, out = (problem.groups, problem.m, problem.k), dtype_named(problem.out)
        return Finishing(shape, out, weight.codes.device, after, 1 / lift)

    @property
    def _is_whole(self) -> bool:
        problem, config = self._problem, self._config
        several = config.matrices < problem.groups or config.rows < problem.n
        return bool(problem.n) and (config.grouped or not (problem.ragged or several))

    @property
    def holds_weights(self) -> bool:
        return bool(self._weights) or (self._decode is not None and self._decode.holds_weights)

    @property
    def builds(self) -> Sequence[Build]:
        return _builds(self._problem, self._config)

    @property
    def is_capturable(self) -> bool:
        return self._config.grouped or not self._problem.ragged

    def __call__(
        self, grad: Tensor, biases: tuple[None], group_sizes: Tensor | None, out: Tensor
    ) -> None:
        problem = self._problem
        if self._decode is None:
            _run(problem, self._config, self._weights, grad, group_sizes, out)
        elif group_sizes is not None:
            _multiply_groups(problem, self._decode(), grad, group_sizes, out)
        else:
            self._multiply_whole(self._decode(), grad.to(self._dtype), out)

    def _multiply_whole(self, w: Tensor, grad: Tensor, out: Tensor) -> None:
        problem = self._problem
        if problem.groups == 1:  # every view costs the host as much as a launch
            w = w[0]
        else:
            grad, out = (each.unflatten(0, (problem.groups, problem.m)) for each in (grad, out))
        if self._finish is None:
            product(grad, w, out)
        else:
            self._finish(product(grad, w), out)


def _builds(problem: Problem, config: Config) -> Sequence[Build]:
    rows = config.matrices * min(config.rows, problem.n)
    if config.grouped:
        return [decoder(problem, rows, problem.w_kind.format.has_tensor_scale)]
    return [decoder(problem, rows), epilogue(problem.out)]


def _run(
    problem: Problem,
    config: Config,
    weights: tuple[Parts, ...],  # one: [groups, n, k]
    grad: Tensor,  # [rows, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, k]
) -> None:
    (weight,) = weights
    if not problem.n:
        out.zero_()
    elif group_sizes is not None:
        _multiply_each_group(problem, config, weight, grad, group_sizes, out)
    else:
        above, below = (each.unflatten(0, (problem.groups, problem.m)) for each in (grad, out))
        for first in range(0, problem.groups, config.matrices):
            some = slice(first, first + config.matrices)
            _multiply(problem, config, weight.cut(some), above[some], below[some])


def _multiply_each_group(
    problem: Problem,
    config: Config,
    weight: Parts,
    grad: Tensor,
    group_sizes: Tensor,
    out: Tensor,
) -> None:
    """The sizes are read on the host."""
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0  # rows of nobody
    for group, (start, stop) in enumerate(slices):
        if start < stop:
            part = weight.cut(slice(group, group + 1))
            _multiply(problem, config, part, grad[None, start:stop], out[None, start:stop])


def _multiply(
    problem: Problem,
    config: Config,
    weight: Parts,  # [groups, n, k]
    grad: Tensor,  # [groups, m, n]
    out: Tensor,  # [groups, m, k]
) -> None:
    grad = grad.to(multiplied_dtype(problem))
    before = scale_decoded(problem, weight)
    after, lift = None if folds_tensor_scale(problem) else weight.tensor_scale, lift_of(problem)

    def of_panel(rows: slice, out: Tensor | None = None) -> Tensor:
        shape = problem.n, problem.k
        w = decode_rows(problem.w_kind, weight, rows, shape, grad.dtype, before)
        return product(grad[..., rows], w, out)

    first, *others = panels(config, 0, problem.n)
    if not others and after is None and lift == 1.0 and torch_writes(problem, out.numel()):
        of_panel(first, out)
        return
    sums = of_panel(first)
    for rows in others:
        sums += of_panel(rows)
    finish([Sums(sums, after)], out, factor=1 / lift)


def _multiply_groups(
    problem: Problem,
    w: Tensor,  # [groups, n, k], decoded
    grad: Tensor,
    group_sizes: Tensor,
    out: Tensor,
) -> None:
    """Nothing comes from the host."""
    ends = group_sizes.clamp(min=0).cumsum(0).clamp(max=problem.rows).int()
    y = torch.nn.functional.grouped_mm(aligned(grad), w, offs=ends)
    belongs = torch.arange(problem.rows, device=out.device) < ends[-1]
    torch.where(belongs[:, None], y, y.new_zeros(()), out=out)
