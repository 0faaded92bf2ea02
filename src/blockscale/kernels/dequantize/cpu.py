"""Native code that gives the bits of the definition, from canonical or prepared bytes."""

from __future__ import annotations

from torch import Tensor

from blockscale.kernels.contract import Parts
from blockscale.kernels.native import (
    NativeConfig,
    adjacent_columns,
    call_native,
    matrices,
    native_configs,
    native_format,
    native_refusal,
    pointer,
)
from blockscale.problem import Problem
from blockscale.runtime import native

NAME = "cpu"
_READS = ("bits/rows", "planes/rows", "lanes/lanes")


def refuses(problem: Problem) -> str | None:
    layout = str(problem.w_kind.layout)
    if layout not in _READS:
        return f"reads {', '.join(_READS)}, not {layout}"
    return native_refusal(problem.target)


def configs(problem: Problem) -> list[NativeConfig]:
    return native_configs()


def launch(
    problem: Problem,
    config: NativeConfig,
    parts: Parts,  # [groups, n, k]; tensor_scale [groups, n]
    out: Tensor,  # [groups, n, k]
) -> None:
    format, layout = problem.w_kind
    groups, n, k = out.shape
    codes, scale = adjacent_columns(parts.codes), adjacent_columns(parts.scale)
    row_scale = None if parts.tensor_scale is None else parts.tensor_scale.contiguous()
    table = None if parts.codebook is None else parts.codebook.contiguous()
    call = native.Dequantize(
        native_format(format, table),
        native.CODE_LAYOUTS[layout.codes],
        groups,
        n,
        k,
        matrices(codes),
        matrices(scale),
        pointer(row_scale),
        matrices(out),
        native.DTYPES[problem.out],
        native.ISAS.index(config.isa),
        config.threads,
    )
    call_native("bs_dequantize", call)
