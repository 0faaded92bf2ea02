"""Native CPU kernels: C++ with runtime dispatch. Six algorithms on one layout of the weights:

    stream  a few rows of x: each weight is read once and multiplied while it is decoded
    gemm    many rows: tiles of weights are decoded to float32 once and meet every row
    amx     bfloat16 x: tiles of weights are decoded to bfloat16 and multiplied by AMX tiles
    bfmmla  bfloat16 x on ARM: weights are decoded to bfloat16 while matrices of it are multiplied
    slices  codes of 2 to 6 bits on ARM: x and the values of the weight are cut into slices of
            eight bits, whose dot products are exact
    int8    x in int8, where that was asked for: dot products of bytes

All sum in float32 in a fixed order: the same bits on each run and for any number of threads.
Canonical weights are packed for them at every call, some rows at a time. Formats that they do not
know are decoded in `panels` and multiplied by torch, whose bits depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.formats import INT8, Format
from blockscale.kernels.contract import Launch, Parts, Prediction
from blockscale.kernels.cpu_arguments import Rows, matmul_arguments
from blockscale.kernels.matmul.cpu_constants import Machine
from blockscale.kernels.matmul.cpu_cost import PREDICTED, basis, cost, ranked, swept_machine
from blockscale.kernels.matmul.cpu_slices import weight_slices
from blockscale.kernels.native import (
    NativeConfig,
    call_native,
    decoded_rows,
    native_configs,
    native_refusal,
    streams,
)
from blockscale.kernels.panels import in_rows, matrix, rows_of_groups
from blockscale.kernels.repack.cpu import CPU_TILES, can_pack, pack
from blockscale.layouts import Layout
from blockscale.numerics import Activation, parse_activation
from blockscale.problem import Problem, dtype_name
from blockscale.runtime import Device, ceilings, native

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cpu"
_PANEL_FLOATS = 1 << 21  # weights that are decoded or packed at a time: 8 MB at most

# Rows of x for each matrix from which `amx` overtakes `stream` on a Xeon. A rule, which two stored
# sweeps hold to what was measured (docs/design/0007-choosing.md).
_AMX_ROWS = 5
_DOT_PRODUCTS = ("dotprod", "i8mm", "bf16")  # instruction sets of ARM


@dataclass(frozen=True)
class Config(NativeConfig):
    algorithm: str
    packs: bool  # the weights, at every call

    @property
    def quantizes_x(self) -> bool:
        return self.algorithm == "int8"

    def __str__(self) -> str:
        notes = [f"{self.algorithm} on {super().__str__()}"]
        if self.algorithm == "panels":
            notes.append("torch multiplies: bits depend on threads (bs.deterministic() avoids it)")
        if self.packs:
            notes.append("packs the weights at every call (w.prepare() does it once)")
        return "; ".join(notes)


def reads(format: Format, device: Device) -> Layout | None:
    return CPU_TILES if streams(format) and native_refusal(device) is None else None


def refuses(problem: Problem) -> str | None:
    refusal = native_refusal(problem.device)
    if refusal is None and not algorithms(problem, "scalar"):
        return f"leaves {problem.w_kind} to torch, whose bits depend on threads"
    return refusal


def configs(problem: Problem) -> list[Config]:
    """All that can do it, the fastest by prediction first."""
    packs = problem.w_kind.layout != CPU_TILES
    return [
        Config(config.isa, algorithm, packs and algorithm != "panels")
        for config in native_configs()
        for algorithm in algorithms(problem, config.isa)
    ]


def algorithms(problem: Problem, isa: str) -> list[str]:
    """Every legal one, the fastest first: `int8` where it was asked for, `amx` and `bfmmla` by
    their rules, the others by predicted time. They sum in different orders, so that a choice must
    depend neither on the number of threads nor on a measurement, or bits would: the prediction is
    for the machine that the constants were fitted on."""
    format, layout = problem.w_kind
    if not streams(format) or not (layout == CPU_TILES or can_pack(format, layout)):
        return [] if problem.deterministic else ["panels"]
    floats = ("stream", "gemm", "slices") if slices(problem, isa) else ("stream", "gemm")
    times = {each: cost(problem, each, isa, swept_machine(isa)).seconds for each in floats}
    return by_time(problem, isa, times)


def slices(problem: Problem, isa: str) -> bool:
    """Whether there are dot products of bytes, and the weight can be cut into bytes."""
    return isa in _DOT_PRODUCTS and weight_slices(problem.w_kind.format, problem.k) > 0


def by_time(problem: Problem, isa: str, times: dict[str, float]) -> list[str]:
    """The algorithms whose seconds are given and those that go by a rule, the fastest first."""
    legal, bits = ranked(times), problem.w_kind.format.element.bits
    if isa == "amx" and problem.x == "bfloat16":
        rows = problem.m / max(problem.groups, 1) if problem.ragged else problem.m
        legal.insert(0 if rows >= _AMX_ROWS else 1, "amx")
    if isa == "bf16" and problem.x == "bfloat16":
        # At any number of rows: by counted instructions it is the fastest at each
        # (docs/design/0014-arm.md), and a row then has the same bits among any others.
        legal.insert(0, "bfmmla")
    if "@" in problem.x and problem.x_kind.format == INT8 and bits in (2, 4):
        legal.insert(0, "int8")
    return legal


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights)


def _run(
    problem: Problem,
    config: Config,
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    x: Tensor | Parts,  # [rows, k]; numbers for `int8` too, which rounds them
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    ends = _group_ends(problem, group_sizes)
    if ends[-1] < problem.rows:
        out[ends[-1] :] = 0  # rows of nobody
    activation = parse_activation(problem.activation) if problem.gated else None
    if config.algorithm == "panels":
        _multiply_by_torch(problem, config, x, weights, biases, ends, activation, out)
        return
    rows = _rows_of(problem, config, x)
    if not config.packs:
        whole = tuple(part.placed(Launch.alignment) for part in weights)
        _multiply(problem, config, rows, whole, biases, ends, activation, out)
        return
    for group, start, stop, first, last in _panels(problem, ends):
        packed = tuple(_pack(problem, config, part, group, first, last) for part in weights)
        columns = tuple(None if bias is None else bias[group, None, first:last] for bias in biases)
        part = out[start:stop, first:last]
        _multiply(
            problem, config, rows[start:stop], packed, columns, [0, stop - start], activation, part
        )


class Product(Launch):
    """A call on some weights, with all that does not change between calls found out.

    Of rows of numbers and weights that are packed; other calls are launched anew each time. What
    the weights hold is read at every call, so it does not matter whether they are frozen.
    """

    def __init__(self, problem: Problem, config: Config, weights: tuple[Parts, ...]) -> None:
        self._problem, self._config = problem, config
        self._weights = weights
        self._template = b""
        if weights and not (problem.ragged or config.packs or config.algorithm == "panels"):
            placed = tuple(part.placed(self.alignment) for part in weights)
            # A template has the addresses of the weights, which whoever calls keeps alive.
            copies = any(part.why_copied(self.alignment) for part in weights)
            self._weights = placed if copies or "@" in problem.x else ()
            ends = _group_ends(problem, None)
            self._row_begin = (ctypes.c_int64 * len(ends))(*ends)
            # They stand for the real ones.
            x = torch.empty(1, problem.k, dtype=torch.float32)
            out = torch.empty(1, problem.n, dtype=problem.out_dtype)
            activation = parse_activation(problem.activation) if problem.gated else None
            bare: list[Tensor | None] = [None for _ in weights]
            rows, begin = Rows(x, None, None), self._row_begin
            arguments = matmul_arguments(
                problem, config, rows, placed, bare, begin, activation, out
            )
            self._template = bytes(arguments)

    @property
    def holds_weights(self) -> bool:
        return bool(self._weights)

    @property
    def predicted(self) -> Prediction | None:
        """On this machine, with torch's threads; None of algorithms without a model."""
        config = self._config
        if config.algorithm not in PREDICTED:
            return None
        limits = ceilings(torch.device("cpu"), torch.float32)
        machine = Machine(config.threads, limits.read_bytes_per_s, limits.flops_per_s)
        found = cost(self._problem, config.algorithm, config.isa, machine)
        return Prediction(1e6 * found.seconds, found.bound_by, basis=basis(config.isa))

    def __call__(
        self,
        x: Tensor | Parts,
        biases: tuple[Tensor | None, ...],
        group_sizes: Tensor | None,
        out: Tensor,
    ) -> None:
        if isinstance(x, Parts) or not self._template:
            _run(self._problem, self._config, self._weights, x, biases, group_sizes, out)
            return
        call = native.Matmul.from_buffer_copy(self._template)
        rows, (between, along) = x, x.stride()
        if along != 1:
            rows, between = x.contiguous(), x.shape[1]
        call.x, call.x_stride = rows.data_ptr(), between
        call.x_dtype = native.DTYPES[dtype_name(rows.dtype)]
        call.out, (call.out_stride, _) = out.data_ptr(), out.stride()
        call.threads = self._config.threads  # torch's, which may have changed since
        if self._problem.bias:
            kept = [None if bias is None else bias.contiguous() for bias in biases]
            for weight, bias in zip((call.gate, call.up), kept, strict=False):
                if bias is not None:
                    weight.bias = bias.data_ptr()
                    weight.bias_dtype = native.DTYPES[dtype_name(bias.dtype)]
        call_native(f"bs_{self._config.algorithm}", call)


def _group_ends(problem: Problem, group_sizes: Tensor | None) -> list[int]:
    """Rows of group g are those from ends[g] to ends[g + 1]."""
    return [0, *(stop for _, stop in rows_of_groups(problem, group_sizes))]


def _panels(problem: Problem, ends: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """group, its rows of x, and some rows of its weight: for every group that has rows."""
    height = max(_PANEL_FLOATS // problem.k, 1)
    height += -height % max(problem.w_kind.layout.row_granularity, 16)
    for group, (start, stop) in enumerate(itertools.pairwise(ends)):
        if start < stop:
            for first in range(0, problem.n, height):
                yield group, start, stop, first, min(first + height, problem.n)


def _pack(
    problem: Problem, config: Config, part: Parts, group: int, first: int, last: int
) -> Parts:
    format, layout = problem.w_kind
    codes, scale = part.codes[group, None, first:last], part.scale[group, None, first:last]
    packed = pack(codes, scale, format, layout, (1, last - first, problem.k), config)
    tensor_scale = None if part.tensor_scale is None else part.tensor_scale[group, None]
    codebook = None if part.codebook is None else part.codebook.contiguous()
    return Parts(*packed, tensor_scale, codebook)


def _rows_of(problem: Problem, config: Config, x: Tensor | Parts) -> Rows:
    if isinstance(x, Tensor):
        return Rows(x if x.stride(-1) == 1 else x.contiguous(), None, None)
    x, kind = in_rows(problem, x)
    x = x.placed(Launch.alignment)  # one tensor scale may be spread over all rows
    if config.algorithm == "int8":
        return Rows(x.codes, x.tensor_scale, x.scale)
    every, shape = slice(0, problem.rows), (problem.rows, problem.k)
    return Rows(decoded_rows(kind, config, x, shape, every), x.tensor_scale, None)


def _multiply(
    problem: Problem,
    config: Config,
    x: Rows,
    weights: tuple[Parts, ...],  # in cpu_tiles
    biases: tuple[Tensor | None, ...],
    ends: list[int],
    activation: Activation | None,
    out: Tensor,  # [rows, n], with adjacent columns
) -> None:
    """One of the library's own algorithms."""
    row_begin = (ctypes.c_int64 * len(ends))(*ends)
    kept = [None if bias is None else bias.contiguous() for bias in biases]
    call = matmul_arguments(problem, config, x, weights, kept, row_begin, activation, out)
    call_native(f"bs_{config.algorithm}", call)


def _multiply_by_torch(
    problem: Problem,
    config: Config,
    x: Tensor | Parts,
    weights: tuple[Parts, ...],
    biases: tuple[Tensor | None, ...],
    ends: list[int],
    activation: Activation | None,
    out: Tensor,
) -> None:
    """Some rows of the weight at a time: decode them, let torch multiply, finish."""
    rows, shape = _rows_of(problem, config, x), (problem.n, problem.k)
    values = rows.values.float()
    for group, start, stop, first, last in _panels(problem, ends):
        branches = []
        for part, bias in zip(weights, biases, strict=True):
            one = matrix(part, group)
            panel = decoded_rows(problem.w_kind, config, one, shape, slice(first, last))
            y = values[start:stop] @ panel.T
            if rows.scale is not None:
                y *= rows.scale[start:stop, None]
            if part.tensor_scale is not None:
                y *= part.tensor_scale[group]
            branches.append(y if bias is None else y + bias[group, first:last].float())
        out[start:stop, first:last] = branches[0] if activation is None else activation(*branches)
