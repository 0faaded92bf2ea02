"""A product by cuda/kernels/stream.cu on some weights, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, memmove, sizeof

import torch
from torch import Tensor

from blockscale.kernels.contract import Launch, Parts, Prediction, ReplayLaunch
from blockscale.kernels.cuda.enums import Activation, Dtype
from blockscale.kernels.cuda.tables import counted, is_symmetric
from blockscale.kernels.dequantize.cuda import decode
from blockscale.kernels.matmul.stream.arguments import (
    Arguments,
    TensorMap,
    Weight,
    WgmmaArguments,
    weight_maps,
)
from blockscale.kernels.matmul.stream.build import builds, stream_build
from blockscale.kernels.matmul.stream.choice import predicted
from blockscale.kernels.matmul.stream.config import Config, decodes_x, matrices, x_dtype
from blockscale.kernels.matmul.stream.space import padded_shared
from blockscale.kernels.matmul.stream.workspace import workspace
from blockscale.numerics import parse_activation
from blockscale.problem import Problem, dtype_name
from blockscale.runtime.cuda import Build, Function, current_stream, function, matrix_map


class Product(Launch):
    """A call on some weights, with everything found out that does not change between calls.

    Frozen weights are copied before the kernel ahead in the stream has ended, from the third call
    on: the calls before have waited for whatever wrote them. A change by torch is seen by the
    weights' version, and counting starts again. Other weights may be written without a trace
    (`Tensor.data`, another library, inference mode), so every call waits for the kernel ahead.
    """

    alignment = 16  # bytes that `cp.async` and TMA copy at a time
    _SETTLES_AFTER = 2  # calls

    def __init__(
        self, problem: Problem, config: Config, weights: tuple[Parts, ...], frozen: bool = False
    ) -> None:
        self._problem, self._config, self._frozen = problem, config, frozen
        if weights:
            self._bind(weights)

    def _bind(self, weights: tuple[Parts, ...]) -> None:
        problem, config = self._problem, self._config
        self._weights = [part.placed(self.alignment) for part in weights]
        self._device = self._weights[0].codes.device
        self._tables = [part.codebook for part in self._weights if part.codebook is not None]
        self._kernel = self._find_kernel()
        self._tiles, self._matrices = config.output_tiles(problem), matrices(problem)
        self._grid = self._tiles, config.splits, self._matrices
        self._threads = config.threads
        self._shared = padded_shared(problem, config)
        self._cluster = config.splits if config.cluster else 1
        self._pdl = problem.device.pdl
        self._counted = counted(self._weights) if self._frozen else []
        self._version = -1
        self._calls = 0
        self._decodes_x = decodes_x(problem, config)
        self._arguments = WgmmaArguments if config.wgmma else Arguments
        self._template = bytes(self._fixed())

    def _find_kernel(self) -> Function:
        """By what the tables hold now, if that can be told from what they held at another call."""
        whole = self._problem.w_kind.format.element.bits < 4  # shorter tables are not halved
        mirrored = self._frozen and all(is_symmetric(table) for table in self._tables)
        symmetric = whole or not self._tables or mirrored
        return function(stream_build(self._problem, self._config, symmetric), self._device)

    def _fixed(self) -> Arguments | WgmmaArguments:
        problem = self._problem
        arguments = self._arguments(
            m=problem.m,
            n=problem.n,
            k=problem.k,
            groups=problem.groups,
            out_dtype=Dtype[problem.out.upper()],
        )
        for i, part in enumerate(self._weights):
            arguments.weight[i] = Weight(*map(_address, part), None)
            if isinstance(arguments, WgmmaArguments):
                code_map, scale_map = weight_maps(problem, self._config, part)
                arguments.code_map[i] = TensorMap.from_buffer_copy(code_map)
                arguments.scale_map[i] = TensorMap.from_buffer_copy(scale_map)
        if problem.gated:
            activation = parse_activation(problem.activation)
            arguments.activation = Activation[activation.name.upper()]
            arguments.alpha, arguments.limit = activation.alpha, activation.limit
        return arguments

    def __call__(
        self,
        x: Tensor | Parts,
        biases: tuple[Tensor | None, ...],
        group_sizes: Tensor | None,
        out: Tensor,
    ) -> None:
        wgmma = self._config.wgmma
        arguments = self._arguments.from_buffer_copy(self._template)
        held: list[Tensor | None] = []
        if isinstance(x, Parts):
            values, *held = self._add_scales(arguments, x)
            arguments.x, arguments.x_stride = values.data_ptr(), values.stride(0)
        else:
            values, arguments.x, arguments.x_stride = _copyable(x, wgmma)
        arguments.out, (arguments.out_stride, _) = out.data_ptr(), out.stride()
        arguments.weights_unchanged = self._are_unchanged()
        if group_sizes is not None:
            sizes = group_sizes.contiguous()
            arguments.group_sizes = sizes.data_ptr()
            arguments.sizes_are_64_bits = sizes.dtype == torch.int64
            held.append(sizes)
        if self._problem.bias:
            held += self._add_biases(arguments, biases)
        if wgmma:
            x_map = self._map(values.data_ptr(), values.stride(0))
            memmove(addressof(arguments), x_map, len(arguments.x_map))
        stream = current_stream(self._device)
        if self._grid[1] > self._cluster:
            self._add_workspace(arguments, stream)
        self._kernel.launch(
            self._grid,
            self._threads,
            self._shared,
            stream,
            arguments,
            self._pdl,
            self._cluster,
        )

    @property
    def builds(self) -> Sequence[Build]:
        return builds(self._problem, self._config)

    @property
    def predicted(self) -> Prediction | None:
        return predicted(self._problem, self._config)

    @property
    def held(self) -> int:
        """CTAs that an SM holds at a time."""
        return self._kernel.occupancy(self._threads, self._shared)

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
        if version is None or differ or self._grid[1] > self._cluster:
            return None
        kind = self._arguments
        arguments = kind.from_buffer_copy(self._template)
        arguments.out_stride, arguments.weights_unchanged = problem.n, self._frozen
        for dtype in dtypes:
            arguments.bias_dtype = Dtype[dtype_name(dtype).upper()]
        if group_sizes is not None:
            arguments.sizes_are_64_bits = group_sizes.dtype == torch.int64
        bias_at = kind.weight.offset + Weight.bias.offset
        shape = self._grid, self._threads, self._shared, self._pdl, self._cluster
        return ReplayLaunch(
            bytes(arguments),
            kind.x.offset,
            kind.x_stride.offset,
            kind.out.offset,
            bias_at,
            bias_at + sizeof(Weight),
            kind.group_sizes.offset,
            self._map if self._config.wgmma else None,
            *self._kernel.prepared(*shape),
            tuple(self._counted),
            version,
            self._device.index,
        )

    def _map(self, address: int, stride: int) -> bytes:
        """Of x."""
        problem, index = self._problem, self._device.index
        matrix = x_dtype(problem), problem.rows, problem.k, stride
        box = self._config.tile_m, self._config.tile_k // 64
        return matrix_map(index, address, *matrix, *box)

    def _are_unchanged(self) -> bool:
        """Whether no kernel that may still run writes the weights."""
        version = 0
        for tensor in self._counted:
            version += tensor._version  # which only grows
        if version != self._version:
            if self._version != -1:
                self._kernel = self._find_kernel()
            self._version, self._calls = version, 0
        self._calls += 1
        return self._frozen and self._calls > self._SETTLES_AFTER

    def _add_scales(
        self, arguments: Arguments | WgmmaArguments, x: Parts
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
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

    def _add_biases(
        self, arguments: Arguments | WgmmaArguments, biases: tuple[Tensor | None, ...]
    ) -> list[Tensor | None]:
        held = _alike(biases)
        for weight, bias in zip(arguments.weight, held, strict=False):
            if bias is not None:
                weight.bias = bias.data_ptr()
                arguments.bias_dtype = Dtype[dtype_name(bias.dtype).upper()]
        return held

    def _add_workspace(self, arguments: Arguments | WgmmaArguments, stream: int) -> None:
        config, outputs = self._config, self._tiles * self._matrices
        sums = outputs * config.splits * config.tile_m * config.weight_rows
        partial, arrivals = workspace(self._device, stream, sums, outputs)
        arguments.partial, arguments.arrivals = partial.data_ptr(), arrivals.data_ptr()


def _copyable(x: Tensor, wgmma: bool) -> tuple[Tensor, int, int]:
    """Rows that can be copied 16 bytes at a time, and do not overlap where the hardware is told of
    all of them; where they begin, and how far apart they are. All strides at once are read quicker
    than one."""
    begin, (between, along) = x.data_ptr(), x.stride()
    apart = not wgmma or between >= x.shape[1]
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


def _alike(biases: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Contiguous, and of one dtype."""
    dtypes = {bias.dtype for bias in biases if bias is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return [None if bias is None else bias.to(dtype).contiguous() for bias in biases]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
