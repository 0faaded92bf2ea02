"""Tensor scales derived from the data, on a GPU by one kernel: see cuda/kernels/tensor_scale.cu."""

from __future__ import annotations

from ctypes import Structure
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.formats import CATALOGUE, Format
from blockscale.kernels.amax import row_amax
from blockscale.kernels.cuda.formats import TENSOR_SCALES, cuda_format
from blockscale.kernels.cuda.rows import (
    MOST_UNITS,
    NUMBERS,
    THREADS,
    Matrices,
    Rows,
    aligned,
    matrices,
    rows_of,
)
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.numerics import tensor_scale_of
from blockscale.problem import dtype_name
from blockscale.runtime import target_of
from blockscale.runtime.cuda import (
    Build,
    cuda_refusal,
    current_stream,
    function,
    multiprocessors,
)

_VALUES = 8  # of a unit: every k is a multiple
_AHEAD = 4  # units of a thread, read together: 64 bytes of bfloat16 under way hide the memory
_BLOCKS = 8  # thread blocks of an SM, which all run at the same time
_MOST_Y = 1 << 15  # thread blocks of a grid's second dimension


class TensorScaleArguments(Structure):
    HEADER = Header("tensor_scale_arguments", "rows")
    MEMBERS = (
        Member(Matrices, "x", "[groups, n, k], 16-byte aligned rows"),
        Member(Rows, "rows"),
        Member("u32", "units", "of those that share a tensor scale"),
        Member("u32*", "amax", "[tensor scales], zeros"),
        Member("u32*", "arrivals", "[tensor scales], zeros"),
        Member("float*", "out", "[tensor scales]"),
    )
    _fields_ = fields(MEMBERS)


def tensor_scales(x: Tensor, format: Format, per_row: bool) -> Tensor:
    """x [groups, n, k] -> float32 [groups, n], or [groups] with one per matrix."""
    groups, n, k = x.shape
    if cuda_refusal(target_of(x.device)) is None and x.numel() // _VALUES <= MOST_UNITS:
        return derive(x, format, per_row)
    amax = row_amax(x.reshape(groups * n, k)).reshape(groups, n)
    return tensor_scale_of(amax if per_row else amax.amax(-1), format)


def derive(x: Tensor, format: Format, per_row: bool, parts: int | None = None) -> Tensor:
    """By the kernel, in `parts` thread blocks to a tensor scale."""
    groups, n, k = x.shape
    x = aligned(x)
    count, units = (groups * n, k // _VALUES) if per_row else (groups, n * k // _VALUES)
    parts = parts or _parts(units, count, target_of(x.device))
    out = torch.empty(count, dtype=torch.float32, device=x.device)
    shared = torch.zeros(2, count, dtype=torch.int32, device=x.device) if parts > 1 else None
    arguments = TensorScaleArguments(
        matrices(x),
        rows_of(groups, n, k // _VALUES),
        units,
        None if shared is None else shared[0].data_ptr(),
        None if shared is None else shared[1].data_ptr(),
        out.data_ptr(),
    )
    kernel = function(_build(format, dtype_name(x.dtype)), x.device)
    grid = parts, min(count, _MOST_Y), -(-count // _MOST_Y)
    kernel.launch(grid, THREADS, 0, current_stream(x.device), arguments)
    return out.reshape(groups, n) if per_row else out


def _parts(units: int, count: int, target: str) -> int:
    """Thread blocks that share the units of a tensor scale, until the GPU is full."""
    full = -(-_BLOCKS * multiprocessors(target) // count)
    return max(1, min(full, -(-units // (THREADS * _AHEAD))))


@lru_cache(maxsize=256)
def _build(format: Format, dtype: str) -> Build:
    defines: dict[str, str | int] = {
        "BS_FORMAT": cuda_format(format),
        "BS_TENSOR_SCALE": TENSOR_SCALES[format.tensor_scale],
        "BS_NUMBERS": NUMBERS[dtype],
        "BS_VALUES": _VALUES,
        "BS_AHEAD": _AHEAD,
        "BS_THREADS": THREADS,
    }
    return Build("tensor_scale.cu", "tensor_scale", tuple(defines.items()))


def every_build(target: str) -> list[Build]:
    formats = [format for format in CATALOGUE.values() if format.has_tensor_scale]
    return [_build(format, dtype) for format in formats for dtype in NUMBERS]
