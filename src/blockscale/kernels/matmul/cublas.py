"""For many rows on a GPU: some rows of the weights at a time are decoded to x's dtype, and torch's
library multiplies. Each weight is rounded once; sums are in float32, in an order of the library's.

float32 is multiplied as float64. Whether torch multiplies float32 by TF32 is a setting of the whole
process, which another thread may change at any time; TF32 cannot enter a product of float64. On
A100, H100 and B200 that costs little, since their float64 tensor cores are as fast as float32; on
GPUs without them it is up to 64 times slower. bfloat16 and float16 are not affected.

Of a ragged problem it reads the group sizes on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blockscale.kernels.contract import Config as BaseConfig
from blockscale.kernels.contract import FunctionLaunch, Launch, Parts, reads_canonical
from blockscale.kernels.dequantize import cuda, cuda_fragments
from blockscale.kernels.panels import matrix, panels, rows_of_groups
from blockscale.numerics import parse_activation
from blockscale.problem import Kind, Problem, dtype_name
from blockscale.runtime.cuda import Build, cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "cublas"
reads = reads_canonical

_SCRATCH_BYTES = 64 << 20  # of decoded weights
_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class Config(BaseConfig):
    rows: int  # of the weights, decoded at a time
    doubled: bool  # float32 is multiplied as float64

    def __str__(self) -> str:
        as_double = ", float32 as float64 (no setting lets TF32 in)" if self.doubled else ""
        return f"{self.rows} rows of w decoded at a time; torch multiplies{as_double}"


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device)
    if refusal is None and problem.deterministic:
        return "leaves the order of sums to torch's library"
    if refusal is None and "@" in problem.x:
        return _unreadable(problem.x_kind)
    return refusal or _unreadable(problem.w_kind)


def _unreadable(kind: Kind) -> str | None:
    canonical = kind.layout.codes in ("bits", "planes") and kind.layout.scales in (
        "rows",
        "blocked",
    )
    if canonical or kind.layout.scales == "fragments":
        return None
    return f"cannot decode {kind}"


def configs(problem: Problem) -> list[Config]:
    dtype = _x_dtype(problem)
    doubled = dtype == torch.float32
    size = dtype.itemsize + (torch.float64.itemsize if doubled else 0)
    rows = max(_SCRATCH_BYTES // (size * max(problem.k, 1)), 1)
    return [Config(max(rows // 128 * 128, 128), doubled)]


def _x_dtype(problem: Problem) -> torch.dtype:
    """What is multiplied. float16 has no room for every weight of some formats."""
    scale, element = problem.w_kind.format.scale, problem.w_kind.format.element
    cramped = scale.bits == 32 or scale.power_of_two or element.max * scale.max > _LARGEST_FLOAT16
    if "@" in problem.x or (problem.x == "float16" and cramped):
        return torch.float32
    dtype: torch.dtype = getattr(torch, problem.x)
    return dtype


def _lift(problem: Problem, dtype: torch.dtype) -> float:
    """Brings products of a codebook and its scales to where float16 has all its bits."""
    return 256.0 if dtype == torch.float16 and problem.w_kind.format.is_codebook else 1.0


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return FunctionLaunch(
        partial(_run, problem, config, weights),
        builds=partial(_builds, problem, config),
        is_capturable=not problem.ragged,
    )


def _builds(problem: Problem, config: Config) -> Sequence[Build]:
    """What decodes the weights, some rows at a time."""
    name = dtype_name(_x_dtype(problem))
    if problem.w_kind.layout.scales == "fragments":
        return [cuda_fragments.decoder(problem.w, name)]
    lifted = _lift(problem, _x_dtype(problem)) != 1.0
    height = min(config.rows, problem.n)
    return [cuda.decoder(problem.w, name, lifted, height * problem.k)]


def _run(
    problem: Problem,
    config: Config,
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    x: Tensor | Parts,  # [rows, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    values, x_scale = _x(problem, x)
    lift = _lift(problem, values.dtype)
    slices = rows_of_groups(problem, group_sizes)
    out[slices[-1][1] if slices else 0 :] = 0  # rows of nobody
    activation = parse_activation(problem.activation) if problem.gated else None
    for group, (start, stop) in enumerate(slices):
        for columns in panels(config, 0, problem.n if start < stop else 0):
            branches = []
            for part, bias in zip(weights, biases, strict=True):
                panel = _decoded(
                    problem.w_kind, matrix(part, group), columns, values.dtype, problem.k, lift
                )
                y = _product(values[start:stop], panel)
                if lift != 1.0:
                    y /= lift  # a power of two: exact
                if x_scale is not None:
                    y *= x_scale[start:stop, None]
                if part.tensor_scale is not None:
                    y *= part.tensor_scale[group]
                branches.append(y if bias is None else y + bias[group, columns].float())
            out[start:stop, columns] = (
                branches[0] if activation is None else activation(*branches)
            ).to(out.dtype)


def _x(problem: Problem, x: Tensor | Parts) -> tuple[Tensor, Tensor | None]:
    if isinstance(x, Tensor):
        return x.to(_x_dtype(problem)), None
    parts = Parts(x.codes, x.scale, None, x.codebook)
    rows = slice(0, problem.rows)
    return _decoded(problem.x_kind, parts, rows, torch.float32, problem.k), x.tensor_scale


def _decoded(
    kind: Kind, part: Parts, rows: slice, dtype: torch.dtype, k: int, lift: float = 1.0
) -> Tensor:
    """decode * scale * lift of some rows of a matrix, rounded once."""
    height, device = rows.stop - rows.start, part.codes.device
    out = torch.empty(1, height, k, dtype=dtype, device=device)
    lifted = None if lift == 1.0 else torch.full((1, height), lift, device=device)
    shape = (rows.stop, k)
    codes, scale = kind.layout.slice_rows(part.codes, part.scale, kind.format, shape, rows)
    cut = Parts(codes[None], scale[None], lifted, part.codebook)
    reader = cuda_fragments if kind.layout.scales == "fragments" else cuda
    reader.decode(str(kind), cut, out)
    return out[0]


def _product(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.T in float32; TF32 never enters, and no setting of torch is touched."""
    if x.dtype == torch.float32:
        return (x.double() @ w.double().T).float()
    return torch.mm(x, w.T, out_dtype=torch.float32)
