"""A launch of a block-scaled kernel on some weights, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.contract import Launch, Parts
from blockscale.kernels.cuda.enums import Activation
from blockscale.kernels.matmul.block_scaled.arguments import (
    BlockScaledArguments,
    Boxes,
    code_map,
    scale_map,
)
from blockscale.kernels.matmul.block_scaled.operands import LAYOUT, operands
from blockscale.kernels.matmul.fragments.arguments import (
    TensorMap,
    Weight,
    add_biases,
    address_of,
)
from blockscale.layouts import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS, SCALES
from blockscale.numerics import parse_activation
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build, current_stream, function


class Shape(NamedTuple):
    """How a kernel is launched."""

    grid: tuple[int, int, int]
    threads: int
    shared: int  # bytes
    cluster: int
    boxes: Boxes
    band: int


class BlockScaledProduct(Launch):
    """A call on some weights, with everything found out that does not change between calls.

    Every call waits for the kernel ahead in the stream before it reads anything.
    """

    alignment = 32  # bytes: where TMA may begin to unpack slots

    def __init__(self, problem: Problem, config: Any, weights: tuple[Parts, ...] = ()) -> None:
        self._problem, self._config = problem, config
        self._operands = operands(problem)
        if weights:
            self._bind(weights)

    def _shape(self) -> Shape:
        raise NotImplementedError

    def _build(self) -> Build:
        raise NotImplementedError

    @property
    def builds(self) -> Sequence[Build]:
        return [self._build()]

    def _bind(self, weights: tuple[Parts, ...]) -> None:
        self._weights = [part.placed(self.alignment) for part in weights]
        self._device = self._weights[0].codes.device
        self._kernel = function(self._build(), self._device)
        self._launched = self._shape()
        self._template = bytes(self._fixed())

    def _fixed(self) -> BlockScaledArguments:
        """Arguments, with what does not change between calls."""
        problem, boxes = self._problem, self._launched.boxes
        arguments = BlockScaledArguments(
            m=problem.m, n=problem.n, k=problem.k, groups=problem.groups, band=self._launched.band
        )
        for i, part in enumerate(self._weights):
            arguments.weight[i] = Weight(*map(address_of, part), None)
            rows = problem.groups * problem.n
            codes = code_map(
                part.codes, rows, problem.k, self._operands.w_bits, self._operands, boxes.w_rows
            )
            scales = scale_map(
                part.scale,
                problem.groups,
                problem.n,
                problem.k,
                self._operands,
                boxes.w_atoms,
                boxes.scale_groups,
            )
            arguments.code_map[i] = TensorMap.from_buffer_copy(codes)
            arguments.scale_map[i] = TensorMap.from_buffer_copy(scales)
        if problem.gated:
            activation = parse_activation(problem.activation)
            arguments.activation = Activation[activation.name.upper()]
            arguments.alpha, arguments.limit = activation.alpha, activation.limit
        return arguments

    def __call__(
        self,
        x: Parts,
        biases: tuple[Tensor | None, ...],
        group_sizes: Tensor | None,
        out: Tensor,
    ) -> None:
        arguments = BlockScaledArguments.from_buffer_copy(self._template)
        x = self._with_blocked_scales(x).placed(self.alignment)
        held: list[Tensor | None] = [*self._add_x(arguments, x)]
        arguments.out, (arguments.out_stride, _) = out.data_ptr(), out.stride()
        if group_sizes is not None:
            sizes = group_sizes.contiguous()
            arguments.group_sizes = sizes.data_ptr()
            arguments.sizes_are_64_bits = sizes.dtype == torch.int64
            held.append(sizes)
        if self._problem.bias:
            held += add_biases(arguments, biases)
        grid, threads, shared, cluster, *_ = self._launched
        stream = current_stream(self._device)
        self._kernel.launch(
            grid, threads, shared, stream, arguments, self._problem.device.pdl, cluster
        )

    @property
    def _x_matrices(self) -> int:
        """Whose blocked scales are padded apart: batches, and not the groups of ragged rows."""
        return 1 if self._problem.ragged else self._problem.groups

    def _with_blocked_scales(self, x: Parts) -> Parts:
        """Scales that are in rows, as those of x quantised on the fly are, placed anew."""
        if self._problem.x_kind.layout == LAYOUT:
            return x
        rows = x.scale.reshape(self._x_matrices, self._problem.m, -1)
        return x._replace(scale=SCALES[LAYOUT.scales].pack(rows, 1))

    def _add_x(self, arguments: BlockScaledArguments, x: Parts) -> Parts:
        problem, boxes = self._problem, self._launched.boxes
        matrices = self._x_matrices
        _check_scales(x.scale, matrices, problem.m, problem.k // self._operands.block)
        bits = self._operands.x_bits
        codes = code_map(x.codes, problem.rows, problem.k, bits, self._operands, boxes.x_rows)
        scales = scale_map(
            x.scale,
            matrices,
            problem.m,
            problem.k,
            self._operands,
            boxes.x_atoms,
            boxes.scale_groups,
        )
        arguments.x_map = TensorMap.from_buffer_copy(codes)
        arguments.x_scale_map = TensorMap.from_buffer_copy(scales)
        arguments.x_scale = address_of(x.tensor_scale)
        return x


def _check_scales(scale: Tensor, matrices: int, rows: int, blocks: int) -> None:
    """Blocked scales of x are those of its matrices, each padded by itself."""
    atoms = matrices * -(-rows // ATOM_ROWS) * -(-blocks // ATOM_COLUMNS)
    if scale.numel() != atoms * ATOM_BYTES:
        raise ValueError(
            f"matmul: {matrices} x {rows} rows of {blocks} blocked scales take "
            f"{atoms * ATOM_BYTES} bytes, and x has {scale.numel()}: quantise x as "
            "[rows, k] or [batches, rows, k]"
        )
