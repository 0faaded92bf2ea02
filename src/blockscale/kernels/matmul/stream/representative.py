"""Which problems of the stream kernel get one choice, since a choice takes tens of milliseconds.

Told apart no further are numbers of rows that take the same tile of x, biases, and what comes out.
"""

from __future__ import annotations

from dataclasses import replace

from blockscale.kernels.matmul.stream.facts import MMA_ROWS, WGMMA_ROWS
from blockscale.problem import Problem


def representative(problem: Problem) -> Problem:
    """Of all problems that get the same choice."""
    return replace(
        problem,
        m=_rounded(problem),
        bias=False,
        out="bfloat16",
        activation="silu" if problem.gated else "",
    )


def _rounded(problem: Problem) -> int:
    """Rows, up to the next number that is predicted apart: that of a tile of x, or of ragged groups
    one of eight between two powers of two."""
    if problem.ragged:
        step = max(1, 1 << max(0, problem.m.bit_length() - 4))
        return -(-problem.m // step) * step
    tiles = sorted({*MMA_ROWS, *WGMMA_ROWS})
    return next((each for each in tiles if each >= problem.m), problem.m)
