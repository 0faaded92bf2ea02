"""Tensor scales by one kernel, cuda/kernels/tensor_scale.cu."""

from __future__ import annotations

from ctypes import Structure
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
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
from blockscale.problem import Problem, dtype_name, parse_kind
from blockscale.runtime.cuda import Build, cuda_refusal, current_stream, function

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cuda"
reads = reads_canonical

_VALUES = 8  # of a unit: every k is a multiple
_AHEAD = 4  # units of a thread, read together: 64 bytes of bfloat16 under way hide the memory
_CTAS_PER_SM = 8  # which all run at the same time
_MOST_Y = 1 << 15  # CTAs of a grid's second dimension


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


@dataclass(frozen=True)
class Config(BaseConfig):
    ctas: int  # that share the numbers of one tensor scale

    def __str__(self) -> str:
        return f"{self.ctas} CTA{'s' if self.ctas > 1 else ''} to a tensor scale"


def refuses(problem: Problem) -> str | None:
    if refusal := cuda_refusal(problem.device):
        return refusal
    if problem.m * problem.k // _VALUES > MOST_UNITS:
        return f"counts to {MOST_UNITS}: {problem.m} x {problem.k} numbers are too many for a call"
    return None


def configs(problem: Problem) -> list[Config]:
    """As many CTAs as fill the GPU, while each has work for all its threads."""
    count = problem.m if problem.rule == "row" else problem.groups
    units = problem.m * problem.k // _VALUES // max(count, 1)
    full = -(-_CTAS_PER_SM * problem.device.sms // max(count, 1))
    return [Config(max(1, min(full, -(-units // (THREADS * _AHEAD)))))]


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(
        partial(_run, problem, config), builds=lambda: [_build(problem.w, problem.x)]
    )


def _run(problem: Problem, config: Config, x: Tensor, out: Tensor) -> None:
    groups, n, k = x.shape
    x = aligned(x)
    count = out.numel()
    units = groups * n * (k // _VALUES) // count
    shared = torch.zeros(2, count, dtype=torch.int32, device=x.device) if config.ctas > 1 else None
    arguments = TensorScaleArguments(
        matrices(x),
        rows_of(groups, n, k // _VALUES),
        units,
        None if shared is None else shared[0].data_ptr(),
        None if shared is None else shared[1].data_ptr(),
        out.data_ptr(),
    )
    kernel = function(_build(problem.w, dtype_name(x.dtype)), x.device)
    grid = config.ctas, min(count, _MOST_Y), -(-count // _MOST_Y)
    kernel.launch(grid, THREADS, 0, current_stream(x.device), arguments)


@lru_cache(maxsize=256)
def _build(kind: str, dtype: str) -> Build:
    format = parse_kind(kind).format
    defines: dict[str, str | int] = {
        "BS_FORMAT": cuda_format(format),
        "BS_TENSOR_SCALE": TENSOR_SCALES[format.tensor_scale],
        "BS_NUMBERS": NUMBERS[dtype],
        "BS_VALUES": _VALUES,
        "BS_AHEAD": _AHEAD,
        "BS_THREADS": THREADS,
    }
    return Build("tensor_scale.cu", "tensor_scale", tuple(defines.items()))
