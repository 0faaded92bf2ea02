"""What the choice of a Config has to know of a problem, worked out once for all of them.

Whatever comes after (legal Configs, their work, its cost, the correction) is a function of a Config
and of these facts: nothing there reads the problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from blockscale.formats import E2M1, Format
from blockscale.kernels.matmul.fragments.groups import (
    Routing,
    busy_counts,
    chance_of_more,
    matrices,
    routings,
    rows_each,
    rows_of_most,
)
from blockscale.kernels.matmul.fragments.numbers import scales_weights, x_dtype
from blockscale.problem import Problem
from blockscale.runtime import Device

MMA_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # rows of x that a CTA takes at a time
WGMMA_ROWS = (16, 24, 32, 48, 64, 96, 128)
_FEW_MORE = 1 / 14  # of ragged groups that have rows
_ALIKE = {"e3m2": "e2m3", "e5m2": "e4m3"}


@dataclass(frozen=True, eq=False)
class Facts:
    device: Device
    format: Format
    element: str  # of codes: one that takes as long to decode, of which the constants tell
    k: int
    outputs: int  # rows of w of a matrix, of gate and up together
    gated: bool
    ragged: bool
    matrices: int  # of weights that a launch is for
    busy: float  # those of them that have rows, on average
    busy_counts: tuple[tuple[float, int], ...]  # chances and numbers of these, in single calls
    weight_bytes: float  # of these, on average
    rows: float  # of x, of each of them
    rows_of_most: int  # so many that one ragged group in a hundred has more
    rows_of_many: int  # so many that a few have more
    crowded: Callable[[int], float]  # the chance that some group has more rows of x than these
    routings: Callable[[int], tuple[Routing, ...]]  # by rows of x that a CTA takes at a time
    scales_weights: Callable[[int], bool]  # and not sums of blocks, by the same
    coded: bool  # x is in codes
    decodable: bool  # that the kernel can decode itself

    @property
    def takes_wgmma(self) -> bool:
        """Whether four warps can multiply together, on Hopper: by weights that are scaled first."""
        return self.device.wgmma and self.scales_weights(WGMMA_ROWS[0])


@lru_cache(maxsize=64)
def facts_of(problem: Problem) -> Facts:
    format, busy = problem.w_kind.format, problem.busy_matrices
    outputs = problem.n * (2 if problem.gated else 1)
    coded = "@" in problem.x
    x = problem.x_kind.format if coded else None
    return Facts(
        device=problem.device,
        format=format,
        element=_ALIKE.get(format.element.name, format.element.name),
        k=problem.k,
        outputs=outputs,
        gated=problem.gated,
        ragged=problem.ragged,
        matrices=matrices(problem),
        busy=busy,
        busy_counts=busy_counts(problem),
        weight_bytes=busy * outputs * problem.k * (format.element.bits / 8 + 1 / format.block),
        rows=rows_each(problem),
        rows_of_most=rows_of_most(problem, WGMMA_ROWS[-1]),
        rows_of_many=rows_of_most(problem, WGMMA_ROWS[-1], _FEW_MORE),
        crowded=partial(chance_of_more, problem),
        routings=partial(routings, problem),
        scales_weights=cache(partial(scales_weights, format, x_dtype(problem))),
        coded=coded,
        decodable=x is not None and x.element == E2M1 and x.block in (16, 32),
    )
