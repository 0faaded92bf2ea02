"""CUDA for few rows: every weight is read once, decoded and multiplied on the way.

One mainloop, cuda/stream.cu, for every format, verb and number of rows; what it is specialised by
is the Config. It sums in float32 in a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

from ctypes import addressof, memmove, sizeof
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.formats import CATALOGUE, NVFP4, Float, Format
from blockscale.kernels.contract import Parts, QuickLaunch
from blockscale.kernels.cuda_arguments import (
    Arguments,
    TensorMap,
    Weight,
    WideArguments,
    weight_maps,
)
from blockscale.kernels.cuda_config import (
    Config,
    decodes_x,
    fits_bfloat16,
    matrices,
    x_dtype,
)
from blockscale.kernels.cuda_stream import stream_candidates, stream_configs, stream_shared
from blockscale.kernels.cuda_tables import is_symmetric
from blockscale.kernels.cuda_wide import is_wide
from blockscale.kernels.cuda_workspace import workspace
from blockscale.kernels.dequantize.sm80 import decode
from blockscale.kernels.prepared import fragments
from blockscale.layouts import Layout, canonical
from blockscale.numerics import parse_activation
from blockscale.problem import Kind, Problem, dtype_name, parse_kind
from blockscale.runtime.cuda import (
    Build,
    Function,
    can_overlap,
    cuda_refusal,
    current_stream,
    function,
    matrix_map,
)

NAME = "sm80"

# Rows of x for a matrix, beyond which weights are decoded once for cuBLAS: where four warps
# multiply together, and elsewhere. Which is faster around there has not been measured.
_MOST_ROWS_WIDE, _MOST_ROWS = 256, 128
_MOST_MATRICES = 2**16 - 1  # that a grid counts
_X = {"bfloat16": "BFloat16", "float16": "Float16"}
_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_ACTIVATIONS = {"silu": 1, "gelu": 2, "gelu_tanh": 3, "swiglu_oai": 4}


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.target)
    if refusal is not None:
        return refusal
    format, layout = problem.w_kind
    wanted = fragments(format)
    if wanted is None:
        return f"knows no {format.spec}"
    if layout != wanted:
        return f"reads {wanted}, and w is in {layout}: w.prepare() once"
    if "@" not in problem.x and problem.x not in _X:
        return f"takes x in bfloat16 or float16, not {problem.x}"
    if "@" in problem.x and not _is_exact_in_bfloat16(problem.x_kind):
        return f"takes x as bfloat16, which {problem.x_kind} would be rounded to"
    if not 0 < matrices(problem) <= _MOST_MATRICES:
        return f"takes 1 to {_MOST_MATRICES} matrices, not {matrices(problem)}"
    most = _MOST_ROWS_WIDE if is_wide(problem) else _MOST_ROWS
    if not problem.ragged and problem.m > most:
        return f"is for up to {most} rows, not {problem.m}"
    if not stream_configs(problem):
        return f"needs more shared memory than {problem.target} has"
    return None


def _is_exact_in_bfloat16(kind: Kind) -> bool:
    """As scaled values of NVFP4 and of the MX formats are."""
    return kind.layout.scales == "rows" and fits_bfloat16(kind.format)


def configs(problem: Problem) -> tuple[Config, ...]:
    return stream_configs(problem)


def candidates(problem: Problem) -> list[Config]:
    return stream_candidates(problem)


def launch(
    problem: Problem,
    config: Config,
    x: Tensor | Parts,  # [rows, k]
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    Launch(problem, config, weights)(x, biases, group_sizes, out)


class Launch:
    """A call on some weights, with everything found out that does not change between calls.

    From the third call on with unchanged weights, these are copied before the kernel ahead in the
    stream has ended: the calls before have waited for whatever wrote them. A change by torch is
    seen by the weights' version, and counting starts again.
    """

    _SETTLES_AFTER = 2  # calls

    def __init__(self, problem: Problem, config: Config, weights: tuple[Parts, ...]) -> None:
        self._problem, self._config = problem, config
        self._weights = [part.contiguous() for part in weights]
        self._device = self._weights[0].codes.device
        self._tables = [part.codebook for part in self._weights if part.codebook is not None]
        self._kernel = self._find_kernel()
        self._tiles, self._matrices = config.output_tiles(problem), matrices(problem)
        self._grid = self._tiles, config.splits, self._matrices
        self._threads = config.threads
        self._shared = stream_shared(problem, config)
        self._cluster = config.splits if config.cluster else 1
        self._overlaps = can_overlap(problem.target)
        written = [part.codes for part in self._weights]
        written += [part.scale for part in self._weights] + self._tables
        written += [part.tensor_scale for part in self._weights if part.tensor_scale is not None]
        self._counted = [tensor for tensor in written if not tensor.is_inference()]
        self._version = -1
        self._calls = 0
        self._decodes_x = decodes_x(problem, config)
        self._arguments = WideArguments if config.wide else Arguments
        self._template = bytes(self._fixed())

    def _find_kernel(self) -> Function:
        """By what the tables hold now."""
        halved = self._problem.w_kind.format.element.bits >= 4  # shorter tables are kept whole
        symmetric = not halved or all(is_symmetric(table) for table in self._tables)
        return function(_build(self._problem, self._config, symmetric), self._device)

    def _fixed(self) -> Arguments | WideArguments:
        problem = self._problem
        arguments = self._arguments(
            m=problem.m,
            n=problem.n,
            k=problem.k,
            groups=problem.groups,
            out_dtype=_DTYPES[problem.out],
        )
        for i, part in enumerate(self._weights):
            arguments.weight[i] = Weight(*map(_address, part), None)
            if isinstance(arguments, WideArguments):
                code_map, scale_map = weight_maps(problem, self._config, part)
                arguments.code_map[i] = TensorMap.from_buffer_copy(code_map)
                arguments.scale_map[i] = TensorMap.from_buffer_copy(scale_map)
        if problem.gated:
            activation = parse_activation(problem.activation)
            arguments.activation = _ACTIVATIONS[activation.name]
            arguments.alpha, arguments.limit = activation.alpha, activation.limit
        return arguments

    def __call__(
        self,
        x: Tensor | Parts,
        biases: tuple[Tensor | None, ...],
        group_sizes: Tensor | None,
        out: Tensor,
    ) -> None:
        wide = self._config.wide
        arguments = self._arguments.from_buffer_copy(self._template)
        held: list[Tensor | None] = []
        if isinstance(x, Parts):
            values, *held = self._add_scales(arguments, x)
            arguments.x, arguments.x_stride = values.data_ptr(), values.stride(0)
        else:
            values, arguments.x, arguments.x_stride = _copyable(x, wide)
        arguments.out, (arguments.out_stride, _) = out.data_ptr(), out.stride()
        arguments.settled = self._is_settled()
        if group_sizes is not None:
            sizes = group_sizes.contiguous()
            arguments.group_sizes = sizes.data_ptr()
            arguments.sizes_are_64_bits = sizes.dtype == torch.int64
            held.append(sizes)
        if self._problem.bias:
            held += self._add_biases(arguments, biases)
        if wide:
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
            self._overlaps,
            self._cluster,
        )

    @property
    def settled_version(self) -> int | None:
        """Of the weights; None while they may still be written to."""
        return self._version if self._calls > self._SETTLES_AFTER else None

    def quick(
        self, biases: tuple[Tensor | None, ...], group_sizes: Tensor | None
    ) -> QuickLaunch | None:
        """Once weights are settled, and x is a plain tensor; None where launches differ in more."""
        problem, version = self._problem, self.settled_version
        dtypes = {bias.dtype for bias in biases if bias is not None}
        differ = "@" in problem.x or len(dtypes) > 1
        if version is None or differ or self._grid[1] > self._cluster:
            return None
        kind = self._arguments
        arguments = kind.from_buffer_copy(self._template)
        arguments.out_stride, arguments.settled = problem.n, 1
        for dtype in dtypes:
            arguments.bias_dtype = _DTYPES[dtype_name(dtype)]
        if group_sizes is not None:
            arguments.sizes_are_64_bits = group_sizes.dtype == torch.int64
        bias_at = kind.weight.offset + Weight.bias.offset
        shape = self._grid, self._threads, self._shared, self._overlaps, self._cluster
        return QuickLaunch(
            bytes(arguments),
            kind.x.offset,
            kind.x_stride.offset,
            kind.out.offset,
            bias_at,
            bias_at + sizeof(Weight),
            kind.group_sizes.offset,
            self._map if self._config.wide else None,
            *self._kernel.prepared(*shape),
            tuple(self._counted),
            version,
            self._device.index,
        )

    def _map(self, address: int, stride: int) -> bytes:
        """Of x."""
        problem, index = self._problem, self._device.index
        matrix = x_dtype(problem), problem.rows, problem.k, stride
        box = self._config.columns, self._config.chunk // 64
        return matrix_map(index, address, *matrix, *box)

    def _is_settled(self) -> bool:
        version = 0
        for tensor in self._counted:
            version += tensor._version  # which only grows
        if version != self._version:
            if self._version != -1:
                self._kernel = self._find_kernel()
            self._version, self._calls = version, 0
        self._calls += 1
        return self._calls > self._SETTLES_AFTER

    def _add_scales(
        self, arguments: Arguments | WideArguments, x: Parts
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
        self, arguments: Arguments | WideArguments, biases: tuple[Tensor | None, ...]
    ) -> list[Tensor | None]:
        held = _alike(biases)
        for weight, bias in zip(arguments.weight, held, strict=False):
            if bias is not None:
                weight.bias = bias.data_ptr()
                arguments.bias_dtype = _DTYPES[dtype_name(bias.dtype)]
        return held

    def _add_workspace(self, arguments: Arguments | WideArguments, stream: int) -> None:
        config, outputs = self._config, self._tiles * self._matrices
        sums = outputs * config.splits * config.columns * config.weight_rows
        partial, arrivals = workspace(self._device, stream, sums, outputs)
        arguments.partial, arguments.arrivals = partial.data_ptr(), arrivals.data_ptr()


def _copyable(x: Tensor, wide: bool) -> tuple[Tensor, int, int]:
    """Rows that can be copied 16 bytes at a time, and do not overlap where the hardware is told of
    all of them; where they begin, and how far apart they are. All strides at once are read quicker
    than one."""
    begin, (between, along) = x.data_ptr(), x.stride()
    apart = not wide or between >= x.shape[1]
    if along == 1 and between % 8 == 0 and begin % 16 == 0 and apart:
        return x, begin, between
    x = x.clone(memory_format=torch.contiguous_format)
    return x, x.data_ptr(), x.stride(0)


def _decoded(problem: Problem, x: Parts) -> Tensor:
    """Rows of numbers, without their tensor scales."""
    values = torch.empty(problem.rows, problem.k, dtype=torch.bfloat16, device=x.codes.device)
    parts = Parts(x.codes[None], x.scale[None], None, x.codebook)
    decode(problem.x, parts, values[None], can_overlap(problem.target))
    return values


def _alike(biases: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Contiguous, and of one dtype."""
    dtypes = {bias.dtype for bias in biases if bias is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return [None if bias is None else bias.to(dtype).contiguous() for bias in biases]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _build(problem: Problem, config: Config, symmetric: bool) -> Build:
    x = problem.x if decodes_x(problem, config) else x_dtype(problem)
    return _specialised(problem.w, x, problem.gated, problem.ragged, symmetric, config)


@lru_cache(maxsize=4096)
def _specialised(
    w: str, x: str, gated: bool, ragged: bool, symmetric: bool, config: Config
) -> Build:
    format = parse_kind(w).format
    element = format.element
    defines: dict[str, str | int] = {
        "BS_X": _X[x] if x in _X else _X["bfloat16"],
        "BS_X_CODED": int("@" in x),
        "BS_ELEMENT": element.name.upper() if isinstance(element, Float) else "TABLE",
        "BS_SCALE": format.scale.name.upper(),
        "BS_BITS": element.bits,
        "BS_BLOCK": format.block,
        "BS_COLUMNS": config.columns,
        "BS_TILES": config.tiles,
        "BS_ROW_WARPS": config.row_warps,
        "BS_K_WARPS": config.k_warps,
        "BS_STAGES": config.stages,
        "BS_SPLITS": config.splits if config.cluster or config.splits == 1 else 0,
        "BS_CHUNK": config.chunk,
        "BS_GATED": int(gated),
        "BS_RAGGED": int(ragged),
        "BS_SYMMETRIC": int(symmetric),
        "BS_MIN_BLOCKS": config.blocks,
        "BS_WIDE": int(config.wide),
        "BS_CLUSTER": int(config.cluster),
        "BS_SHARED_TABLE": int(config.shared_table),
    }
    if "@" in x:
        coded = parse_kind(x).format
        defines |= {"BS_X_SCALE": coded.scale.name.upper(), "BS_X_BLOCK": coded.block}
    return Build("stream.cu", "stream", tuple(defines.items()))


def builds(problem: Problem, config: Config | None = None) -> list[Build]:
    """For the table a format is born with; others compile at their first use."""
    format = problem.w_kind.format
    table = format.codebook
    mirrored = all(low == -high for low, high in zip(table, reversed(table), strict=True))
    symmetric = mirrored or format.element.bits < 4
    return [_build(problem, config or stream_configs(problem)[0], symmetric)]


def instructions(build: Build) -> tuple[str, ...]:
    return ("HGMMA",) if dict(build.defines)["BS_WIDE"] else ("HMMA",)


def every_build(target: str) -> list[Build]:
    """Each format at one and at eight rows; on Hopper each number of rows and kind of product."""
    found = []
    for format in CATALOGUE.values():
        layout = fragments(format)
        if layout is not None:
            for problem in _examples(format, layout, target):
                found += builds(problem)
    return list(dict.fromkeys(found))


def _examples(format: Format, layout: Layout, target: str) -> list[Problem]:
    def example(
        m: int, x: str = "bfloat16", gated: bool = False, groups: int = 1, n: int = 14336
    ) -> Problem:
        return Problem(
            verb="matmul",
            m=m,
            n=n,
            k=4096,
            groups=groups,
            ragged=groups > 1,
            gated=gated,
            activation="silu" if gated else "",
            x=x,
            w=str(Kind(format, layout)),
            out="bfloat16",
            target=target,
        )

    few = [example(1), example(8)]
    if format == NVFP4:
        few.append(example(1, str(Kind(NVFP4, canonical(NVFP4)))))
    if target != "sm_90a":
        return few
    return [
        *few,
        *(example(m) for m in (2, 4, 16, 32, 64, 128)),
        example(1, "float16"),
        example(16, "float16"),
        example(16, "float16", gated=True),
        example(1, gated=True),
        example(8, gated=True),
        example(8, n=28672),
        example(16, n=28672),
        example(64, gated=True, groups=64),
    ]
