"""CUDA that gives the bits of the definition, from canonical bytes: cuda/kernels/dequantize.cu."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure
from dataclasses import dataclass
from functools import lru_cache, partial

from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.cuda.enums import Element
from blockscale.kernels.cuda.formats import cuda_format, fits_bfloat16
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
    code_access,
    ctas_for,
    matrices,
    rows_of,
)
from blockscale.kernels.cuda.structs import Header, Member, fields
from blockscale.problem import Problem, dtype_name, parse_kind
from blockscale.runtime.cuda import Build, cuda_refusal, current_stream, function

__all__ = ["NAME", "bind", "configs", "decode", "decoder", "reads", "refuses"]

NAME = "cuda"
reads = reads_canonical

_VALUES = 8  # of a lane: whole bytes in every packing


class DequantizeArguments(Structure):
    HEADER = Header("dequantize_arguments", "rows")
    MEMBERS = (
        Member(Matrices, "codes", "[groups, n, bytes]"),
        Member(Matrices, "scales", "blocked: a row of atoms counts as a row"),
        Member(Matrices, "tensor_scale", "float32 [groups, n, 1]"),
        Member("const float*", "codebook"),
        Member(Matrices, "out", "[groups, n, k], 16-byte aligned rows"),
        Member(Rows, "rows"),
    )
    _fields_ = fields(MEMBERS)


@dataclass(frozen=True)
class Config(BaseConfig):
    repeat: int  # units of eight numbers that a thread has under way

    def __str__(self) -> str:
        return f"{self.repeat} x {_VALUES} numbers to a thread"


def refuses(problem: Problem) -> str | None:
    if refusal := cuda_refusal(problem.device):
        return refusal
    layout = problem.w_kind.layout
    if layout.codes not in PACKINGS or layout.scales not in ("rows", "blocked"):
        return f"reads bits and planes, with scales in rows or blocked; not {layout}"
    if problem.m * problem.k // _VALUES > MOST_UNITS:
        return f"counts to {MOST_UNITS}: {problem.m} x {problem.k} numbers are too many for a call"
    return None


def configs(problem: Problem) -> list[Config]:
    return [_config(problem.m * problem.k)]


def _config(numbers: int) -> Config:
    """One unit to a thread while that fills the GPU a few times over: 2 million numbers took 3.6 us
    where four units took 6.6, on an H200. Large ones gain 6% by two."""
    return Config(2 if numbers >= 2**24 else 1)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(partial(_run, problem, weights), builds=partial(_builds, problem))


def _run(problem: Problem, weights: tuple[Parts, ...], out: Tensor) -> None:
    decode(problem.w, weights[0], out, pdl=problem.device.pdl)


def decode(kind: str, parts: Parts, out: Tensor, pdl: bool = False) -> None:
    """Rows of any panel: parts and out may be views of a part of all rows.

    pdl: start before the kernel ahead in the stream ends, and let the next one start
    """
    format, layout = parse_kind(kind)
    groups, n, k = out.shape
    config = _config(groups * n * k)
    codes = aligned(parts.codes, code_access(format.element.bits, layout.codes))
    scale = aligned(parts.scale, format.scale.bits // 8)
    table = None if parts.codebook is None else aligned(parts.codebook, 4)
    row_scale = None if parts.tensor_scale is None else aligned_numbers(parts.tensor_scale)
    blocked = layout.scales == "blocked"
    written = aligned(out)
    arguments = DequantizeArguments(
        matrices(codes),
        blocked_matrices(scale, k // format.block) if blocked else matrices(scale),
        matrices(row_scale),
        None if table is None else table.data_ptr(),
        matrices(written),
        rows_of(groups, n, k // _VALUES),
    )
    scaled = parts.tensor_scale is not None
    build = _build(kind, dtype_name(out.dtype), scaled, config.repeat)
    grid = ctas_for(groups * n * (k // _VALUES), config.repeat)
    kernel = function(build, out.device)
    kernel.launch((grid, 1, 1), THREADS, 0, current_stream(out.device), arguments, pdl)
    if written is not out:
        out.copy_(written)


@lru_cache(maxsize=1024)
def _build(kind: str, dtype: str, scaled: bool, repeat: int) -> Build:
    format, layout = parse_kind(kind)
    defines: dict[str, str | int] = {
        "BS_FORMAT": cuda_format(format),
        "BS_TENSOR_SCALE": "GIVEN" if scaled else "NONE",
        "BS_NUMBERS": NUMBERS[dtype],
        "BS_PACKING": PACKINGS[layout.codes],
        "BS_BLOCKED": int(layout.scales == "blocked"),
        "BS_THREADS": THREADS,
        "BS_REPEAT": repeat,
    }
    element = format.element.name.upper()
    known = element in Element.__members__ and layout.codes == "bits"
    if dtype == "bfloat16" and not scaled and known and fits_bfloat16(format):
        defines["BS_EXACT"] = element
    return Build("dequantize.cu", "dequantize", tuple(defines.items()))


def decoder(kind: str, dtype: str, scaled: bool, numbers: int) -> Build:
    """What `decode` loads for so many numbers; scaled: they have tensor scales."""
    return _build(kind, dtype, scaled, _config(numbers).repeat)


def _builds(problem: Problem) -> Sequence[Build]:
    scaled = problem.w_kind.format.has_tensor_scale
    return [decoder(problem.w, problem.out, scaled, problem.m * problem.k)]
