"""Triton for any GPU: weights as files hold them, nothing prepared, every verb and format.

One kernel (`device/product.py`), for GPUs that nobody has written for and weights that nobody has
prepared. On tensor cores that take block scales (sm_100, sm_103, sm_120) and with both operands
quantised it hands codes and scales to them by `tl.dot_scaled`. Elsewhere it decodes weights on
their way to `tl.dot`, once for each tile of rows of x, where `cublas` decodes them once for all
rows but writes them to memory and reads them back.

Sums are float32, in a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

from blockscale.kernels.contract import Launch, Parts, reads_canonical
from blockscale.kernels.cuda.formats import fits_bfloat16
from blockscale.kernels.cuda.rows import MOST_MATRICES
from blockscale.kernels.matmul.portable.config import (
    LARGEST_TILE_K,
    Config,
    configs_of,
    is_native,
    rows_each,
)
from blockscale.kernels.matmul.portable.encoding import unreadable
from blockscale.kernels.matmul.portable.product import Product
from blockscale.problem import Problem
from blockscale.runtime import triton_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "portable"
reads = reads_canonical

# Rows of x for a matrix beyond which decoding weights once, for cuBLAS, is faster. On an H200 lines
# through 64 and 512 rows meet at 107 rows of NVFP4 for 4096 x 4096 and at 180 for 14336 x 4096, of
# KBIT4 at 101 and 154. And rows of float32, which tensor cores would round.
_MOST_ROWS, _MOST_ROWS_FLOAT32 = 96, 16
_MOST_GROUPS = 2**12  # whose sizes a CTA adds up


def refuses(problem: Problem) -> str | None:
    return triton_refusal(problem.device) or _unreadable(problem) or _too_many(problem)


def configs(problem: Problem) -> tuple[Config, ...]:
    return configs_of(problem)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights)


def _unreadable(problem: Problem) -> str | None:
    if "@" in problem.x:
        kind = problem.x_kind
        if kind.layout.scales != "rows" or not fits_bfloat16(kind.format):
            return f"takes x as bfloat16, which {kind} would be rounded to"
        refusal = unreadable(kind, LARGEST_TILE_K)
        if refusal is not None:
            return f"x: {refusal}"
    return unreadable(problem.w_kind, LARGEST_TILE_K)


def _too_many(problem: Problem) -> str | None:
    """What is too large, or faster elsewhere. Where sums must not depend on a library, there is
    nobody else but the definition."""
    most = _MOST_GROUPS if problem.ragged else MOST_MATRICES
    if problem.groups > most:
        return f"takes up to {most} matrices, not {problem.groups}"
    if problem.deterministic or is_native(problem):
        return None
    rows = rows_each(problem)
    most = _MOST_ROWS_FLOAT32 if problem.x == "float32" else _MOST_ROWS
    if rows > most:
        kind = "rows of float32" if problem.x == "float32" else "rows"
        return f"is for up to {most} {kind} of a matrix, not {rows:.0f}"
    return None
