"""What a product of the native CPU library is called with: see `matmul.cpu`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.native import NativeConfig, native_format, pointer
from blockscale.numerics import Activation
from blockscale.problem import Problem, dtype_name, parse_kind
from blockscale.runtime import native


@dataclass(frozen=True)
class Rows:
    """x as an algorithm takes it: numbers, or codes of int8 and their block scales."""

    values: Tensor  # [rows, k]
    scale: Tensor | None  # [rows]: tensor scales
    block_scale: Tensor | None

    def __getitem__(self, rows: slice) -> Rows:
        scale = None if self.scale is None else self.scale[rows]
        block_scale = None if self.block_scale is None else self.block_scale[rows]
        return Rows(self.values[rows], scale, block_scale)


def matmul_arguments(
    problem: Problem,
    config: NativeConfig,
    x: Rows,
    weights: tuple[Parts, ...],
    biases: list[Tensor | None],
    row_begin: ctypes.Array[ctypes.c_int64],
    activation: Activation | None,
    out: Tensor,
) -> native.Matmul:
    """Borrows everything: whoever calls keeps it alive."""
    gate = _weight(weights[0], biases[0])
    up = gate if len(weights) == 1 else _weight(weights[1], biases[1])
    format = _format(problem.w, pointer(weights[0].codebook))
    return native.Matmul(
        format,
        format.table
        if len(weights) == 1
        else _format(problem.w, pointer(weights[1].codebook)).table,
        gate,
        up,
        len(row_begin) - 1,
        out.shape[1],
        problem.k,
        ctypes.addressof(row_begin),
        pointer(x.values),
        x.values.stride(0),
        native.DTYPES[dtype_name(x.values.dtype)],
        pointer(x.scale),
        pointer(x.block_scale),
        pointer(out),
        out.stride(0),
        native.DTYPES[problem.out],
        native.ACTIVATIONS[activation.name if activation else ""],
        activation.alpha if activation else 0.0,
        activation.limit if activation else 0.0,
        native.ISAS.index(config.isa),
        config.threads,
    )


@lru_cache(maxsize=1024)
def _format(kind: str, table: int | None) -> native.Format:
    """By address, so that it is right for whatever table is there."""
    return native_format(parse_kind(kind).format, table)


def _weight(part: Parts, bias: Tensor | None) -> native.Weight:
    return native.Weight(
        pointer(part.codes),
        pointer(part.scale),
        pointer(part.tensor_scale),
        pointer(bias),
        0 if bias is None else native.DTYPES[dtype_name(bias.dtype)],
    )
