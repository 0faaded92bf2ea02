"""How many rows of x and matrices of weights a launch sees, of ragged groups on average."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import ceil, erfc, exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

from blockscale.problem import Problem

# Of a normal distribution, the middles of eight parts that are equally likely.
_DEVIATIONS = tuple(NormalDist().inv_cdf((each + 0.5) / 8) for each in range(8))


def matrices(problem: Problem) -> int:
    """Of weights that a launch reads, at the most."""
    return min(problem.groups, problem.m) if problem.ragged else problem.groups


def rows_each(problem: Problem) -> float:
    """Rows of x of a matrix; of ragged groups, as many as one that has any has on average."""
    if not problem.ragged:
        return problem.m
    return problem.m / max(problem.busy_matrices, 1)


def rows_of_most(problem: Problem, limit: int, share: float = 0.01) -> int:
    """Rows of x of a matrix; of ragged groups, so many that of those that have any only this share
    has more, if rows fall on groups at random: they would read their weights once more. No more
    than `limit` are looked at."""
    if not problem.ragged:
        return problem.m
    mean = problem.m / max(problem.groups, 1)
    chance = exp(-mean)  # of a group to have so many rows
    beyond = any_rows = 1 - chance
    rows = 0
    while beyond > share * any_rows and rows < min(problem.m, limit):
        rows += 1
        chance *= mean / rows
        beyond -= chance
    return rows


@lru_cache(maxsize=256)
def chance_of_more(problem: Problem, rows: int) -> float:
    """That some group has more rows of x than these; of ragged groups, if rows fall on them at
    random."""
    if not problem.ragged:
        return float(problem.m > rows)
    mean = problem.m / max(problem.groups, 1)
    chance = exp(-mean)  # of a group to have so many rows
    fewer = chance
    for each in range(1, rows + 1):
        chance *= mean / each
        fewer += chance
    return 1 - exp(-problem.groups * max(1 - fewer, 0.0))


@lru_cache(maxsize=64)
def busy_counts(problem: Problem) -> tuple[tuple[float, int], ...]:
    """Chances, and how many groups have rows: of ragged ones, if rows fall on them at random."""
    groups = problem.groups
    if not problem.ragged:
        return ((1.0, groups),)
    none = (1 - 1 / groups) ** problem.m  # the chance of a group
    two = (1 - 2 / groups) ** problem.m if groups > 1 else 0.0  # of two of them
    spread = sqrt(max(groups * ((groups - 1) * two + none - groups * none**2), 0.0))
    most, mean = min(groups, problem.m), problem.busy_matrices
    found = Counter(min(most, max(1, round(mean + spread * each))) for each in _DEVIATIONS)
    return tuple((times / len(_DEVIATIONS), busy) for busy, times in found.items())


class Routing(NamedTuple):
    """One of the ways in which rows may fall on ragged groups."""

    chance: float
    tiles: int  # of all groups
    turns: float  # tiles of a group that has rows, on average
    most: int  # of the group that has most: fewer in half of all calls


@lru_cache(maxsize=256)
def routings(problem: Problem, tile_m: int) -> tuple[Routing, ...]:
    """How many tiles of `tile_m` rows of x there may be.

    Sizes of ragged groups are on the device, and nobody waits for them to choose a kernel. Routers
    are trained to spread rows evenly, and rows of one call may be alike. So a prediction is a mean:
    in three of four calls rows fall on groups at random, in the fourth the groups' shares spread by
    half of their mean besides.
    """
    if not problem.ragged:
        each = ceil(problem.m / tile_m)
        return (Routing(1.0, problem.groups * each, each, each),)
    busy = max(problem.busy_matrices, 1.0)
    found = []
    for chance, skew in ((0.75, 0.0), (0.25, 0.5)):
        beyond = _beyond(problem, tile_m, skew)
        tiles = problem.groups * sum(beyond)
        most = sum(1 - (1 - each) ** busy >= 0.5 for each in beyond[1:]) + 1
        found.append(Routing(chance, max(1, round(tiles)), max(tiles / busy, 1.0), most))
    return tuple(found)


def _beyond(problem: Problem, tile_m: int, skew: float) -> list[float]:
    """The chances that a group has rows, more rows than a tile, than two tiles and so on. Its rows
    are about normal: they spread by chance and by `skew` of their mean. Of few rows the chance of
    none is exact."""
    mean = problem.m / max(problem.groups, 1)
    if mean < 1:
        return [problem.busy_matrices / problem.groups]
    spread = sqrt(2 * (mean + (skew * mean) ** 2))
    found, chance = [], 1 - exp(-mean)
    while chance > 1e-3:
        found.append(chance)
        chance = 0.5 * erfc((len(found) * tile_m + 0.5 - mean) / spread)
    return found
