"""Native CPU kernels: C++ with runtime dispatch, four algorithms on one layout of the weights.

    stream  reads each weight once and multiplies it by a few rows of x while it is decoded: float32
            sums in a fixed order, at the speed of memory
    int8    the same with x in int8 and dot products of bytes; only where x is given so
    amx     many rows of bfloat16: weights decoded to bfloat16 tiles, float32 sums in a fixed order
    panels  many rows of anything: columns of the weight decoded to float32, multiplied by torch

The first three give the same bits on each run and for any number of threads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.formats import INT8
from blockscale.kernels.contract import Parts
from blockscale.kernels.native import call_native, decode_rows, native_format, pointer
from blockscale.numerics import Activation, group_slices, parse_activation
from blockscale.problem import Problem, dtype_name
from blockscale.runtime import load_native, native

NAME = "cpu"
_PREPARED = "lanes/lanes"
_TILE = 16
_PANEL_FLOATS = 1 << 21  # 8 MB of decoded columns

# Rows of x for each matrix from which an algorithm overtakes `stream`: docs/performance.md.
_AMX_ROWS = 3
_PANEL_ROWS = 17


@dataclass(frozen=True)
class Config:
    algorithm: str
    isa: str

    def __str__(self) -> str:
        note = ""
        if self.algorithm == "panels":
            note = "; torch multiplies, so bits depend on threads (bs.deterministic() avoids it)"
        return f"{self.algorithm} on {self.isa}, {torch.get_num_threads()} threads{note}"


def refuses(problem: Problem) -> str | None:
    if problem.target != "cpu":
        return f"runs on CPUs; this is {problem.target}"
    loaded = load_native()
    if isinstance(loaded, str):
        return loaded
    if not _algorithms(problem):
        return f"leaves weights in {problem.w_kind.layout} to torch, which is not deterministic"
    return None


def configs(problem: Problem) -> list[Config]:
    """All that can do it, the fastest by rule first."""
    loaded = load_native()
    if isinstance(loaded, str):
        return []
    return [Config(algorithm, loaded.isa) for algorithm in _algorithms(problem)]


def _algorithms(problem: Problem) -> list[str]:
    loaded = load_native()
    isa = loaded.isa if not isinstance(loaded, str) else "scalar"
    rows = problem.m / problem.groups if problem.ragged else problem.m
    streams = _streams(problem)
    ranked: list[tuple[float, str]] = []  # how early, and what
    if streams and _takes_int8(problem):
        ranked.append((0, "int8"))
    if streams and isa == "amx" and problem.x == "bfloat16":
        ranked.append((1 if rows >= _AMX_ROWS else 3, "amx"))
    if streams:
        ranked.append((2, "stream"))
    if not problem.deterministic:
        ranked.append((1.5 if rows >= _PANEL_ROWS else 4, "panels"))
    return [algorithm for _, algorithm in sorted(ranked)]


def _streams(problem: Problem) -> bool:
    """Whether the streaming kernels read these weights as they are."""
    format, layout = problem.w_kind
    bits = format.element.bits
    block = format.block >= 32 or (format.block == 16 and bits in (2, 4, 8))
    decoder = bits <= 6 or format.element.name in native.DECODERS
    return str(layout) == _PREPARED and block and decoder


def _takes_int8(problem: Problem) -> bool:
    quantized = "@" in problem.x and problem.x_kind.format == INT8
    return quantized and problem.w_kind.format.element.bits in (2, 4)


def launch(
    problem: Problem,
    config: Config,
    x: Tensor | Parts,  # [rows, k]
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    sizes = [problem.m] * problem.groups if group_sizes is None else group_sizes.tolist()
    ends = [0, *(stop for _, stop in group_slices(sizes, problem.rows))]
    out[ends[-1] :] = 0
    activation = parse_activation(problem.activation) if problem.gated else None
    if config.algorithm == "panels":
        _multiply_panels(problem, config, x, weights, biases, ends, activation, out)
    else:
        _call(problem, config, x, weights, biases, ends, activation, out)


def _call(
    problem: Problem,
    config: Config,
    x: Tensor | Parts,
    weights: tuple[Parts, ...],
    biases: tuple[Tensor | None, ...],
    ends: list[int],
    activation: Activation | None,
    out: Tensor,
) -> None:
    """One of the library's own algorithms."""
    row_begin = torch.tensor(ends, dtype=torch.int64)
    block_scale: Tensor | None = None
    if config.algorithm == "int8" and isinstance(x, Parts):
        values, x_scale = x.codes, x.tensor_scale
        block_scale = x.scale.contiguous()
    else:
        values, x_scale = _values(problem, x)
    values = values if values.stride(-1) == 1 else values.contiguous()
    kept = [None if bias is None else bias.contiguous() for bias in biases]
    gate, up = (
        native.Weight(
            pointer(part.codes),
            pointer(part.scale),
            pointer(part.tensor_scale),
            pointer(bias),
            native.DTYPES[dtype_name(bias.dtype)] if bias is not None else 0,
        )
        for part, bias in ((weights[0], kept[0]), (weights[-1], kept[-1]))
    )
    call = native.Matmul(
        native_format(problem.w_kind.format, weights[0].codebook),
        gate,
        up,
        problem.groups,
        problem.n,
        problem.k,
        pointer(row_begin),
        pointer(values),
        values.stride(0),
        native.DTYPES[dtype_name(values.dtype)],
        pointer(x_scale),
        pointer(block_scale),
        pointer(out),
        native.DTYPES[problem.out],
        native.ACTIVATIONS[activation.name if activation else ""],
        activation.alpha if activation else 0.0,
        activation.limit if activation else 0.0,
        native.ISAS.index(config.isa),
        torch.get_num_threads(),
    )
    call_native(f"bs_{config.algorithm}", call)


def _values(problem: Problem, x: Tensor | Parts) -> tuple[Tensor, Tensor | None]:
    """x as floats, decode * scale where it is quantised, and its tensor scales."""
    if isinstance(x, Tensor):
        return x, None
    return decode_rows(
        problem.x_kind, x, (problem.rows, problem.k), 0, problem.rows
    ), x.tensor_scale


def _multiply_panels(
    problem: Problem,
    config: Config,
    x: Tensor | Parts,
    weights: tuple[Parts, ...],
    biases: tuple[Tensor | None, ...],
    ends: list[int],
    activation: Activation | None,
    out: Tensor,
) -> None:
    """Some columns at a time: decode them, let torch multiply, finish."""
    values, x_scale = _values(problem, x)
    values = values.float()
    width = min(max(_PANEL_FLOATS // problem.k, 1), problem.n)
    width += -width % _TILE
    for group, (start, stop) in enumerate(itertools.pairwise(ends)):
        if start == stop:
            continue
        for first in range(0, problem.n, width):
            last = min(first + width, problem.n)
            branches = []
            for part, bias in zip(weights, biases, strict=True):
                y = _product(problem, config, values[start:stop], part, group, first, last)
                if x_scale is not None:
                    y *= x_scale[start:stop, None]
                if part.tensor_scale is not None:
                    y *= part.tensor_scale[group]
                branches.append(y if bias is None else y + bias[group, first:last].float())
            y = branches[0] if activation is None else activation(*branches)
            out[start:stop, first:last] = y


def _product(
    problem: Problem, config: Config, x: Tensor, part: Parts, group: int, first: int, last: int
) -> Tensor:
    """x times rows `first` to `last` of one matrix, float32."""
    format, layout = problem.w_kind
    if str(layout) != _PREPARED:
        one = Parts(part.codes[group], part.scale[group], None, part.codebook)
        return x @ decode_rows(problem.w_kind, one, (problem.n, problem.k), first, last).T
    tiles = -(-last // _TILE) - first // _TILE
    panel = torch.empty(problem.k, tiles * _TILE, dtype=torch.float32)
    codes, scales = part.codes[group, first // _TILE :], part.scale[group, first // _TILE :]
    call = native.Panel(
        native_format(format, part.codebook),
        pointer(codes),
        pointer(scales),
        tiles,
        problem.k,
        pointer(panel),
        panel.stride(0),
        native.ISAS.index(config.isa),
        torch.get_num_threads(),
    )
    call_native("bs_decode_panel", call)
    return x @ panel[:, : last - first]
