"""Two quantised operands on Blackwell, multiplied by torch's block-scaled product (cuBLASLt).

NVFP4, MXFP4 and MXFP8, both operands alike. Codes and blocked scales of the weights are handed over
as they are: torch's float4 and float8 views of the same bytes. Scales of x are handed over likewise
where they are blocked, and placed so at each call where they are in rows. Tensor scales, bias and
activation come after float32 sums, in one more pass; where there are none, torch writes the output.

Batches and experts are multiplied one after the other. Of a ragged problem it reads the group sizes
on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.formats import MXFP4, MXFP8, NVFP4, Format
from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts
from blockscale.kernels.cuda.epilogue import Sums, epilogue, finish
from blockscale.kernels.panels import rows_of_groups
from blockscale.layouts import Layout
from blockscale.numerics import Activation, parse_activation
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import Build, cuda_refusal
from blockscale.runtime.torch_private import scaled_mm as multiply

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "scaled_mm"

_OLDEST = (10, 0)  # block scales in tensor cores
_FORMATS = (NVFP4, MXFP4, MXFP8)
_READS = Layout("bits", "blocked")
_X_LAYOUTS = (_READS, Layout("bits", "rows"))
_ELEMENTS = {"e2m1": torch.float4_e2m1fn_x2, "e4m3": torch.float8_e4m3fn}
_SCALES = {"ue4m3": torch.float8_e4m3fn, "e8m0": torch.float8_e8m0fnu}
_MULTIPLE = 16  # of n, and of the bytes of a row


@dataclass(frozen=True)
class Config(BaseConfig):
    places_x_scales: bool  # at each call, where they are in rows

    def __str__(self) -> str:
        placed = "; scales of x are blocked at each call" if self.places_x_scales else ""
        return f"torch's scaled_mm{placed}"


def reads(format: Format, device: Device) -> Layout | None:
    here = device.capability >= _OLDEST and cuda_refusal(device) is None
    return _READS if here and format in _FORMATS else None


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device)
    if refusal is not None:
        return refusal
    if problem.device.capability < _OLDEST:
        return f"multiplies block-scaled operands, which {problem.target} cannot: sm_100 and newer"
    if multiply is None:
        return f"torch {torch.__version__} has no scaled_mm"
    if problem.deterministic:
        return "leaves the order of sums to torch's library"
    return _unreadable(problem)


def _unreadable(problem: Problem) -> str | None:
    """Why torch does not take the operands."""
    if "@" not in problem.x:
        return f"multiplies two quantised operands, and x is {problem.x}: give x_format"
    x, w = problem.x_kind, problem.w_kind
    if x.format != w.format or w.format not in _FORMATS:
        names = ", ".join(each.name.upper() for each in _FORMATS)
        return f"takes {names}, both operands alike; x is {x.format.spec}, w {w.format.spec}"
    if w.layout != _READS or x.layout not in _X_LAYOUTS:
        return f"reads {_READS}, and w is in {w.layout}: w.prepare(x_format=...) once"
    k_multiple = _MULTIPLE * 8 // w.format.element.bits
    if problem.n % _MULTIPLE or problem.k % k_multiple:
        return (
            f"takes n in multiples of {_MULTIPLE} and k of {k_multiple}, not {problem.n} and "
            f"{problem.k}"
        )
    return None


def configs(problem: Problem) -> list[Config]:
    return [Config(problem.x_kind.layout != _READS or problem.ragged)]


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return _Launch(
        partial(_run, problem, weights),
        builds=partial(_builds, problem),
        is_capturable=not problem.ragged,
    )


class _Launch(FunctionLaunch):
    alignment = 16  # bytes, of operands of cuBLASLt


def _builds(problem: Problem) -> Sequence[Build]:
    activation = _activation(problem)
    if _torch_writes(problem):
        return []
    return [epilogue(problem.out, activation and activation.name)]


def _activation(problem: Problem) -> Activation | None:
    return parse_activation(problem.activation) if problem.gated else None


def _torch_writes(problem: Problem) -> bool:
    """Whether sums are results."""
    return not (problem.bias or problem.gated or problem.w_kind.format.has_tensor_scale)


def _run(
    problem: Problem,
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    x: Parts,  # [rows, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0  # rows of nobody
    x = x.placed(_Launch.alignment)
    placed = [part.placed(_Launch.alignment) for part in weights]
    scales = _x_scales(problem, x.scale, slices)
    for group, (start, stop) in enumerate(slices):
        if start == stop:
            continue
        rows = slice(start, stop)
        codes = x.codes[rows].view(_element(problem))

        def product(part: Parts, out: Tensor, codes: Any = codes, group: int = group) -> Tensor:
            w = part.codes[group].view(_element(problem)).t()
            _multiply(codes, w, scales[group], _typed(problem, part.scale[group]), out)
            return out

        if _torch_writes(problem):
            product(placed[0], out[rows])
            continue
        one = slice(group, group + 1)
        sums = [
            Sums(
                product(part, out.new_empty(stop - start, problem.n, dtype=torch.float32))[None],
                None if part.tensor_scale is None else part.tensor_scale[one],
                None if bias is None else bias[one],
            )
            for part, bias in zip(placed, biases, strict=True)
        ]
        x_scale = None if x.tensor_scale is None else x.tensor_scale[None, rows]
        finish(sums, out[None, rows], _activation(problem), x_scale)


def _multiply(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor) -> None:
    if multiply is None:
        raise RuntimeError(f"torch {torch.__version__} has no scaled_mm")
    multiply(x, w, x_scale, w_scale, out)


def _x_scales(problem: Problem, scale: Tensor, slices: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Blocked scales of the rows of each group; of experts, whose rows begin anywhere, placed for
    each."""
    format, layout = problem.x_kind
    if layout == _READS and not problem.ragged:
        return [_typed(problem, each) for each in scale.reshape(problem.groups, -1)]
    shape = (problem.rows, problem.k)
    in_rows = scale if layout != _READS else layout.unpack_scale(scale.flatten(), format, shape)
    return [
        _typed(problem, _READS.pack_scale(in_rows[start:stop], format)) for start, stop in slices
    ]


def _element(problem: Problem) -> torch.dtype:
    return _ELEMENTS[problem.w_kind.format.element.name]


def _typed(problem: Problem, scale: Tensor) -> Tensor:
    return scale.flatten().view(_SCALES[problem.w_kind.format.scale.name])
