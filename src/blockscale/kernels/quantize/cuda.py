"""CUDA that gives the bits of the definition, packed as they are born: cuda/kernels/quantize.cu."""

from __future__ import annotations

from ctypes import Structure
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.cuda.formats import TENSOR_SCALES, carry_mantissa, cuda_format, cuda_search
from blockscale.kernels.cuda.rows import (
    MOST_UNITS,
    NUMBERS,
    PACKINGS,
    THREADS,
    Matrices,
    Rows,
    aligned,
    aligned_numbers,
    blocked_matrices,
    ctas_for,
    matrices,
    rows_of,
)
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.problem import Problem
from blockscale.runtime.cuda import Build, cuda_refusal, current_stream, function

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cuda"
reads = reads_canonical


class QuantizeArguments(Structure):
    HEADER = Header("quantize_arguments", "rows")
    MEMBERS = (
        Member(Matrices, "x", "[groups, n, k], 16-byte aligned rows"),
        Member(Matrices, "tensor_scale", "float32 [groups, n, 1]; written where it is derived"),
        Member("const float*", "codebook"),
        Member(Matrices, "importance", "float32 [groups, k]: without rows"),
        Member(Matrices, "codes"),
        Member(Matrices, "scales", "blocked: a row of atoms counts as a row"),
        Member(Rows, "rows"),
        Member("u32", "share", "units of a CTA: a multiple of its threads"),
    )
    _fields_ = fields(MEMBERS)


@dataclass(frozen=True)
class Config(BaseConfig):
    values: int  # of a lane
    repeat: int  # units that a thread takes, one after the other
    threads: int  # of a CTA

    def __str__(self) -> str:
        return f"{self.values} numbers to a lane, {self.repeat} times, {self.threads} threads"


def refuses(problem: Problem) -> str | None:
    if refusal := cuda_refusal(problem.device):
        return refusal
    _format, layout = problem.w_kind
    if layout.codes not in PACKINGS or layout.scales not in ("rows", "blocked"):
        return f"writes bits or planes, with scales in rows or blocked; not {layout}"
    if problem.m * problem.k // configs(problem)[0].values > MOST_UNITS:
        return f"counts to {MOST_UNITS}: {problem.m} x {problem.k} numbers are too many for a call"
    return None


def configs(problem: Problem) -> list[Config]:
    values, format = _values(problem), problem.w_kind.format
    # Searches and codebooks take more registers: small CTAs fill an SM better.
    is_plain = problem.rule not in ("mse", "four_over_six") and not format.is_codebook
    # A codebook's midpoints are found by every CTA anew: large calls have fewer of these.
    repeat = 1 if problem.m * problem.k // values < 2**17 else 4 if is_plain else 8
    config = Config(values, repeat, THREADS if is_plain else THREADS // 2)
    return [_of_rows(problem, config) if problem.derives else config]


def _values(problem: Problem) -> int:
    """Up to 64 bytes of x, which share the work for addresses: further apart, lanes read slowly."""
    wanted = 16 if problem.x == "float32" else 32
    least = _least_values(problem)
    return max(least, wanted) if problem.k % wanted == 0 else least


def _least_values(problem: Problem) -> int:
    """Whole groups of the packing, in rows of any k."""
    format, layout = problem.w_kind
    least = 32 if layout.codes == "planes" else min(format.block, 16)
    return max(least, format.block // 32)  # a warp holds the largest block


def _of_rows(problem: Problem, config: Config) -> Config:
    """A CTA has one row: its lanes take less of it, so that more of them have work."""
    return replace(config, values=_least_values(problem))


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(
        partial(_run, problem, config), builds=lambda: [_build(problem, _scales(problem), config)]
    )


def _scales(problem: Problem) -> str:
    """Where tensor scales come from."""
    format = problem.w_kind.format
    if problem.derives:
        return TENSOR_SCALES[format.tensor_scale]
    return "GIVEN" if format.has_tensor_scale else "NONE"


def _run(
    problem: Problem,
    config: Config,
    x: Tensor,  # [groups, n, k]
    tensor_scale: Tensor | None,  # float32 [groups, n]; written where the problem derives it
    codebook: Tensor | None,  # float32 [2^bits]
    codes: Tensor,
    scale: Tensor,
    importance: Tensor | None = None,  # float32 [groups, k]
) -> None:
    format, layout = problem.w_kind
    groups, n, k = x.shape
    x = aligned(x)
    table = None if codebook is None else aligned(codebook, 4)
    if tensor_scale is not None and not problem.derives:
        tensor_scale = aligned_numbers(tensor_scale)
    weights = None if importance is None else aligned(importance.contiguous())
    blocks, units = k // format.block, k // config.values
    if layout.scales == "blocked":
        if n % 128 or blocks % 4:
            scale.zero_()  # padding
        scales = blocked_matrices(scale, blocks)
    else:
        scales = matrices(scale)
    arguments = QuantizeArguments(
        matrices(x),
        matrices(tensor_scale),
        None if table is None else table.data_ptr(),
        Matrices() if weights is None else Matrices(weights.data_ptr(), 4 * k, 0),
        matrices(codes),
        scales,
        rows_of(groups, n, units),
        config.repeat * config.threads,
    )
    every = groups * n * units
    grid = groups * n if problem.derives else ctas_for(every, config.repeat, config.threads)
    kernel = function(_build(problem, _scales(problem), config), x.device)
    stream, pdl = current_stream(x.device), problem.device.pdl
    kernel.launch((grid, 1, 1), config.threads, 0, stream, arguments, pdl)


@lru_cache(maxsize=1024)
def _build(problem: Problem, tensor_scales: str, config: Config) -> Build:
    format, layout = problem.w_kind
    defines: dict[str, str | int] = {
        "BS_FORMAT": cuda_format(format),
        "BS_SEARCH": cuda_search(problem.rule),
        "BS_CARRY_FROM": carry_mantissa(format, problem.rule),
        "BS_TENSOR_SCALE": tensor_scales,
        "BS_NUMBERS": NUMBERS[problem.x],
        "BS_PACKING": PACKINGS[layout.codes],
        "BS_BLOCKED": int(layout.scales == "blocked"),
        "BS_WEIGHTED": int(problem.weighted),
        "BS_VALUES": config.values,
        "BS_THREADS": config.threads,
    }
    return Build("quantize.cu", "quantize", tuple(defines.items()))
