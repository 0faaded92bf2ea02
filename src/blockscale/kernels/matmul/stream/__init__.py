"""CUDA for few rows: every weight is read once, decoded and multiplied on the way.

One mainloop, cuda/kernels/stream.cu, for every format, verb and number of rows, specialised by the
Config. It sums in float32 in a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

from torch import Tensor

from blockscale.formats import CATALOGUE, NVFP4, Format
from blockscale.kernels.contract import Parts
from blockscale.kernels.matmul.stream.build import NUMBERS, builds, instructions
from blockscale.kernels.matmul.stream.choice import stream_configs, told
from blockscale.kernels.matmul.stream.config import Config, fits_bfloat16, matrices
from blockscale.kernels.matmul.stream.launcher import Launch
from blockscale.kernels.matmul.stream.space import takes_wgmma
from blockscale.kernels.prepared import fragments
from blockscale.layouts import Layout, canonical
from blockscale.problem import Kind, Problem
from blockscale.runtime.cuda import Build, cuda_refusal

__all__ = [
    "NAME",
    "Launch",
    "builds",
    "configs",
    "every_build",
    "instructions",
    "launch",
    "predicted",
    "refuses",
]

NAME = "stream"

# Rows of x for a matrix, beyond which weights are decoded once for cuBLAS: where four warps
# multiply together, and elsewhere. Which is faster around there has not been measured.
_MOST_ROWS_WIDE, _MOST_ROWS = 256, 128
_MOST_MATRICES = 2**16 - 1  # that a grid counts


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.target)
    if refusal is not None:
        return refusal
    format, layout = problem.w_kind
    wanted = fragments(format)
    if wanted is None:
        return f"knows no {format.spec}"
    if layout != wanted:
        return f"reads {wanted}, and w is in {layout}: w.prepare() once"
    if "@" not in problem.x and problem.x not in NUMBERS:
        return f"takes x in bfloat16 or float16, not {problem.x}"
    if "@" in problem.x and not _is_exact_in_bfloat16(problem.x_kind):
        return f"takes x as bfloat16, which {problem.x_kind} would be rounded to"
    if not 0 < matrices(problem) <= _MOST_MATRICES:
        return f"takes 1 to {_MOST_MATRICES} matrices, not {matrices(problem)}"
    most = _MOST_ROWS_WIDE if takes_wgmma(problem) else _MOST_ROWS
    if not problem.ragged and problem.m > most:
        return f"is for up to {most} rows, not {problem.m}"
    if not stream_configs(problem):
        return f"needs more shared memory than {problem.target} has"
    return None


def _is_exact_in_bfloat16(kind: Kind) -> bool:
    """As scaled values of NVFP4 and of the MX formats are."""
    return kind.layout.scales == "rows" and fits_bfloat16(kind.format)


def configs(problem: Problem) -> tuple[Config, ...]:
    return stream_configs(problem)


def predicted(problem: Problem) -> str:
    return told(problem)


def launch(
    problem: Problem,
    config: Config,
    x: Tensor | Parts,  # [rows, k]
    weights: tuple[Parts, ...],  # one, or gate and up: [groups, n, k]
    biases: tuple[Tensor | None, ...],  # [groups, n]
    group_sizes: Tensor | None,
    out: Tensor,  # [rows, n]
) -> None:
    Launch(problem, config, weights)(x, biases, group_sizes, out)


def every_build(target: str) -> list[Build]:
    """Each format at one and at eight rows; on Hopper each number of rows and kind of product."""
    found = []
    for format in CATALOGUE.values():
        layout = fragments(format)
        if layout is not None:
            for problem in _examples(format, layout, target):
                found += builds(problem)[:1]
    return list(dict.fromkeys(found))


def _examples(format: Format, layout: Layout, target: str) -> list[Problem]:
    def example(
        m: int, x: str = "bfloat16", gated: bool = False, groups: int = 1, n: int = 14336
    ) -> Problem:
        return Problem(
            verb="matmul",
            m=m,
            n=n,
            k=4096,
            groups=groups,
            ragged=groups > 1,
            gated=gated,
            activation="silu" if gated else "",
            x=x,
            w=str(Kind(format, layout)),
            out="bfloat16",
            target=target,
        )

    few = [example(1), example(8)]
    if format == NVFP4:
        few.append(example(1, str(Kind(NVFP4, canonical(NVFP4)))))
    if target != "sm_90a":
        return few
    return [
        *few,
        *(example(m) for m in (2, 4, 16, 32, 64, 128)),
        example(1, "float16"),
        example(16, "float16"),
        example(16, "float16", gated=True),
        example(1, gated=True),
        example(8, gated=True),
        example(8, n=28672),
        example(16, n=28672),
        example(64, gated=True, groups=64),
    ]
