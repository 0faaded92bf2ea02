"""How many rows of x and matrices of weights a launch sees, of ragged groups on average."""

from __future__ import annotations

from math import ceil, erfc, exp, sqrt

from blockscale.problem import Problem


def matrices(problem: Problem) -> int:
    """Of weights that a launch reads, at the most."""
    return min(problem.groups, problem.m) if problem.ragged else problem.groups


def rows_each(problem: Problem) -> float:
    """Rows of x of a matrix; of ragged groups, as many as one that has any has on average."""
    if not problem.ragged:
        return problem.m
    return problem.m / max(problem.busy_matrices, 1)


def rows_of_most(problem: Problem, limit: int) -> int:
    """Rows of x of a matrix; of ragged groups, so many that of those that have any only one in a
    hundred has more, if rows fall on groups at random: it would read its weights once more. No more
    than `limit` are looked at."""
    if not problem.ragged:
        return problem.m
    mean = problem.m / max(problem.groups, 1)
    chance = exp(-mean)  # of a group to have so many rows
    beyond = any_rows = 1 - chance
    rows = 0
    while beyond > any_rows / 100 and rows < min(problem.m, limit):
        rows += 1
        chance *= mean / rows
        beyond -= chance
    return rows


def expected_tiles(problem: Problem, tile_m: int) -> int:
    """Of `tile_m` rows of x, of all groups; of ragged ones as many as are expected where rows fall
    on them at random."""
    if not problem.ragged:
        return problem.groups * ceil(problem.m / tile_m)
    return max(1, round(problem.groups * _tiles_of_group(problem, tile_m)))


def _tiles_of_group(problem: Problem, tile_m: int) -> float:
    """Expected: of a group's tiles each exists with the chance that its rows are more than those of
    the tiles before. Rows of a group are about normal, of few the chance of none is exact."""
    mean = problem.m / max(problem.groups, 1)
    if mean < 1:
        return problem.busy_matrices / problem.groups
    spread = sqrt(2 * mean)
    expected, tile, chance = 0.0, 1, 1 - exp(-mean)
    while chance > 1e-3:
        expected += chance
        chance = 0.5 * erfc((tile * tile_m + 0.5 - mean) / spread)
        tile += 1
    return expected
