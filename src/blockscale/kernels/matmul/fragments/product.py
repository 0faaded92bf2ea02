"""A launch on some weights, again and again: what all kernels of fragments do alike."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_void_p, memmove, sizeof
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.contract import Launch, Parts, ReplayLaunch
from blockscale.kernels.cuda.enums import Activation, Dtype
from blockscale.kernels.cuda.tables import counted, is_symmetric
from blockscale.kernels.dequantize.cuda import decode
from blockscale.kernels.matmul.fragments.arguments import (
    TensorMap,
    Weight,
    add_biases,
    address_of,
    weight_maps,
)
from blockscale.kernels.matmul.fragments.numbers import x_dtype
from blockscale.numerics import parse_activation
from blockscale.problem import Problem, dtype_name
from blockscale.runtime.cuda import Build, current_stream, function, matrix_map


class Shape(NamedTuple):
    """How a kernel is launched, and the boxes in which TMA copies, if it does."""

    arguments: Any  # a struct with the members of `Arguments`, behind tensor maps where TMA copies
    grid: tuple[int, int, int]
    threads: int
    shared: int  # bytes
    cluster: int = 1
    x_box: tuple[int, int] | None = None  # rows, and panels of 64 k
    tiles_of_cta: int = 0  # of 16 rows of w, of gate or of up
    tile_k: int = 0


class FragmentProduct(Launch):
    """A call on some weights, with everything found out that does not change between calls.

    Frozen weights are copied before the kernel ahead in the stream has ended, from the third call
    on: the calls before have waited for whatever wrote them. A change by torch is seen by the
    weights' version, and counting starts again. Other weights may be written without a trace
    (`Tensor.data`, another library, inference mode), so every call waits for the kernel ahead.
    """

    alignment = 16  # bytes that `cp.async` and TMA copy at a time
    _SETTLES_AFTER = 2  # calls

    def __init__(
        self, problem: Problem, config: Any, weights: tuple[Parts, ...], frozen: bool = False
    ) -> None:
        self._problem, self._config, self._frozen = problem, config, frozen
        if weights:
            self._bind(weights)

    def _shape(self) -> Shape:
        """Of the kernel that was found."""
        raise NotImplementedError

    def _build(self, symmetric: bool) -> Build:
        """`symmetric`: codebooks, if any, have halves that mirror each other."""
        raise NotImplementedError

    @property
    def _decodes_x(self) -> bool:
        """Whether the kernel takes codes of x."""
        return False

    @property
    def _has_workspace(self) -> bool:
        """Whether launches share memory that is the stream's."""
        return False

    def _workspace(self, stream: int) -> bytes:
        """Addresses of it, from `Arguments.partial` on."""
        raise NotImplementedError

    @property
    def builds(self) -> Sequence[Build]:
        """For the table a format is born with, frozen; then for any table, where that is
        another."""
        format = self._problem.w_kind.format
        table = format.codebook
        mirrored = all(low == -high for low, high in zip(table, reversed(table), strict=True))
        kinds = (
            [True]
            if not table or format.element.bits < 4
            else [True, False]
            if mirrored
            else [False]
        )
        return [self._build(symmetric) for symmetric in kinds]

    def _bind(self, weights: tuple[Parts, ...]) -> None:
        placed = [part.placed(self.alignment) for part in weights]
        # Of others the launch has the addresses, and whoever calls keeps them alive.
        self._copies = placed if any(part.why_copied(self.alignment) for part in weights) else []
        self._device = placed[0].codes.device
        self._has_tables = placed[0].codebook is not None
        self._counted = counted(placed) if self._frozen else []
        tables = (part.codebook for part in placed if part.codebook is not None)
        self._tables = list(tables) if self._frozen else []
        self._find_kernel()
        self._pdl = self._problem.device.pdl
        self._version = -1
        self._calls = 0
        self._template = bytes(self._fixed(placed))

    @property
    def holds_weights(self) -> bool:
        return bool(self._copies or self._counted or self._tables)

    def _find_kernel(self) -> None:
        """By what the tables hold now, if that can be told from what they held at another call."""
        whole = self._problem.w_kind.format.element.bits < 4  # shorter tables are not halved
        mirrored = self._frozen and all(is_symmetric(table) for table in self._tables)
        self._symmetric = whole or not self._has_tables or mirrored
        self._kernel = function(self._build(self._symmetric), self._device)
        self._launched = self._shape()

    def _fixed(self, weights: Sequence[Parts]) -> Any:
        """Arguments, with what does not change between calls."""
        problem, shape = self._problem, self._launched
        arguments = shape.arguments(
            m=problem.m,
            n=problem.n,
            k=problem.k,
            groups=problem.groups,
            out_dtype=Dtype[problem.out.upper()],
        )
        for i, part in enumerate(weights):
            arguments.weight[i] = Weight(*map(address_of, part), None)
            if shape.x_box:
                code_map, scale_map = map(TensorMap.from_buffer_copy, self._weight_maps(part))
                arguments.code_map[i], arguments.scale_map[i] = code_map, scale_map
        if problem.gated:
            activation = parse_activation(problem.activation)
            arguments.activation = Activation[activation.name.upper()]
            arguments.alpha, arguments.limit = activation.alpha, activation.limit
        return arguments

    def _weight_maps(self, part: Parts) -> tuple[bytes, bytes]:
        """Of codes and of scales."""
        shape = self._launched
        return weight_maps(self._problem, part, shape.tiles_of_cta, shape.tile_k)

    def __call__(
        self,
        x: Tensor | Parts,
        biases: tuple[Tensor | None, ...],
        group_sizes: Tensor | None,
        out: Tensor,
    ) -> None:
        by_tma = self._launched.x_box is not None
        arguments = self._launched.arguments.from_buffer_copy(self._template)
        held: list[Tensor | None] = []
        if isinstance(x, Parts):
            values, *held = self._add_scales(arguments, x)
            arguments.x, arguments.x_stride = values.data_ptr(), values.stride(0)
        else:
            values, arguments.x, arguments.x_stride = _copyable(x, by_tma)
        arguments.out, (arguments.out_stride, _) = out.data_ptr(), out.stride()
        arguments.weights_unchanged = self._are_unchanged()
        if group_sizes is not None:
            sizes = group_sizes.contiguous()
            arguments.group_sizes = sizes.data_ptr()
            arguments.sizes_are_64_bits = sizes.dtype == torch.int64
            held.append(sizes)
        if self._problem.bias:
            held += add_biases(arguments, biases)
        if by_tma:
            x_map = self._map(values.data_ptr(), values.stride(0))
            memmove(addressof(arguments), x_map, len(arguments.x_map))
        _, grid, threads, shared, cluster, *_ = self._launched
        stream = current_stream(self._device)
        if self._has_workspace:
            at = addressof(arguments) + self._launched.arguments.partial.offset
            memmove(at, self._workspace(stream), 2 * sizeof(c_void_p))
        self._kernel.launch(grid, threads, shared, stream, arguments, self._pdl, cluster)

    @property
    def held(self) -> int:
        """CTAs that an SM holds at a time."""
        return self._kernel.occupancy(self._launched.threads, self._launched.shared)

    @property
    def spilled(self) -> int:
        """Bytes of a thread."""
        return self._kernel.local_bytes

    @property
    def settled_version(self) -> int | None:
        """Of frozen weights, 0 of others; None until calls have been alike for long enough."""
        return self._version if self._calls > self._SETTLES_AFTER else None

    def replay(
        self, biases: tuple[Tensor | None, ...], group_sizes: Tensor | None
    ) -> ReplayLaunch | None:
        """Once calls are alike, and x is a plain tensor; None where launches differ in more."""
        problem, version = self._problem, self.settled_version
        dtypes = {bias.dtype for bias in biases if bias is not None}
        differ = "@" in problem.x or len(dtypes) > 1
        if version is None or differ:
            return None
        kind, grid, threads, shared, cluster, x_box, *_ = self._launched
        arguments = kind.from_buffer_copy(self._template)
        arguments.out_stride, arguments.weights_unchanged = problem.n, self._frozen
        for dtype in dtypes:
            arguments.bias_dtype = Dtype[dtype_name(dtype).upper()]
        if group_sizes is not None:
            arguments.sizes_are_64_bits = group_sizes.dtype == torch.int64
        bias_at = kind.weight.offset + Weight.bias.offset
        return ReplayLaunch(
            bytes(arguments),
            kind.x.offset,
            kind.x_stride.offset,
            kind.out.offset,
            bias_at,
            bias_at + sizeof(Weight),
            kind.group_sizes.offset,
            self._map if x_box else None,
            self._workspace if self._has_workspace else None,
            kind.partial.offset if self._has_workspace else 0,
            *self._kernel.prepared(grid, threads, shared, self._pdl, cluster),
            tuple(self._counted),
            version,
            self._device.index,
        )

    def _map(self, address: int, stride: int) -> bytes:
        """Of x."""
        problem, index = self._problem, self._device.index
        matrix = x_dtype(problem), problem.rows, problem.k, stride
        return matrix_map(index, address, *matrix, *(self._launched.x_box or ()))

    def _are_unchanged(self) -> bool:
        """Whether no kernel that may still run writes the weights."""
        version = 0
        for tensor in self._counted:
            version += tensor._version  # which only grows
        if version != self._version:
            if self._version != -1:
                self._find_kernel()
            self._version, self._calls = version, 0
        self._calls += 1
        return self._frozen and self._calls > self._SETTLES_AFTER

    def _add_scales(self, arguments: Any, x: Parts) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows of quantised x, of codes if the kernel decodes them; and what else must be held."""
        row_scale = None if x.tensor_scale is None else x.tensor_scale.contiguous()
        if row_scale is not None:
            arguments.x_scale = row_scale.data_ptr()
        if not self._decodes_x:
            return _decoded(self._problem, x), row_scale, None
        codes, scale = x.codes.contiguous(), x.scale.contiguous()
        if codes.data_ptr() % 4:
            codes = codes.clone()
        arguments.x_block_scale, arguments.x_block_stride = scale.data_ptr(), scale.stride(0)
        return codes, row_scale, scale


def _copyable(x: Tensor, by_tma: bool) -> tuple[Tensor, int, int]:
    """Rows that can be copied 16 bytes at a time, and do not overlap where the hardware is told of
    all of them; where they begin, and how far apart they are. All strides at once are read quicker
    than one."""
    begin, (between, along) = x.data_ptr(), x.stride()
    apart = not by_tma or between >= x.shape[1]
    if along == 1 and between % 8 == 0 and begin % 16 == 0 and apart:
        return x, begin, between
    x = x.clone(memory_format=torch.contiguous_format)
    return x, x.data_ptr(), x.stride(0)


def _decoded(problem: Problem, x: Parts) -> Tensor:
    """Rows of numbers, without their tensor scales."""
    values = torch.empty(problem.rows, problem.k, dtype=torch.bfloat16, device=x.codes.device)
    parts = Parts(x.codes[None], x.scale[None], None, x.codebook)
    decode(problem.x, parts, values[None], pdl=problem.device.pdl)
    return values
