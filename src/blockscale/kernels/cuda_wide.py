"""Configs of cuda/stream.cu in which four warps multiply together, by `wgmma`: on Hopper.

The measurements behind the rule are in docs/design/0003-cuda-decoding.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockscale.formats import E2M1
from blockscale.kernels.cuda_config import (
    STATIC_SHARED,
    Config,
    cluster_places,
    rows_of_most,
    scales_weights,
    weight_tiles,
    x_dtype,
)
from blockscale.problem import Problem
from blockscale.runtime.cuda import has_wgmma, multiprocessors, shared_limit

_COLUMNS = (16, 24, 32, 48, 64, 96, 128)
_SPLITS = (8, 4, 3, 2)  # blocks of a cluster
_ENOUGH, _NEARLY = 1.8, 3.5  # see _sharing
_FEW_SUMS = 64  # columns times tiles of a warp, of which a multiprocessor holds 16 warps, else 8


def _columns(problem: Problem) -> int:
    """Rows of x at a time."""
    rows = rows_of_most(problem)
    return next((each for each in _COLUMNS if each >= rows), _COLUMNS[-1])


def is_wide(problem: Problem) -> bool:
    """Whether a problem can be multiplied so."""
    format = problem.w_kind.format
    return has_wgmma(problem.target) and scales_weights(format, x_dtype(problem), _COLUMNS[0])


def _sharing(problem: Problem, columns: int) -> float:
    """Warps that the GPU has for each tile of weights, where each takes one (two, if gated)."""
    tiles = 2 if problem.gated else 1
    return _warps(columns * tiles, problem) * tiles / max(weight_tiles(problem), 1)


def _warps(sums: int, problem: Problem) -> int:
    return (16 if sums <= _FEW_SUMS else 8) * multiprocessors(problem.target)


# Chunks and stages to try, the best first.
_LONG = ((256, 3), (256, 2))
_SHORT = ((128, 3), (128, 2))
_ANY = (*_LONG, *_SHORT)
_DEEP = ((256, 3),)


@dataclass(frozen=True)
class _Shape:
    tiles: int
    row_warps: int
    k_warps: int
    splits: int | None  # as many as the GPU has room for
    stages: tuple[tuple[int, int], ...] = _ANY
    shared_table: bool = False


def wide_configs(problem: Problem) -> list[Config]:
    """The best by rule first.

    Sixteen warps keep a multiprocessor busy. While there are enough tiles of weights, a warp takes
    all k of one; with fewer, warps of a block share the k, and then blocks of a cluster.
    """
    if not is_wide(problem):
        return []
    columns = _columns(problem)
    shapes = _table_shapes(problem, columns) + _by_fill(problem, columns)
    # What else may be worth measuring, or fits where the first ones do not.
    least = _least_tiles(problem)
    shapes += [_Shape(least, rows, k, 1) for rows, k in ((8, 1), (4, 2), (4, 4), (4, 1))]
    found = [_fit(problem, columns, shape) for shape in dict.fromkeys(shapes)]
    return list(dict.fromkeys(each for each in found if each is not None))


def _least_tiles(problem: Problem) -> int:
    """Of a warp: gate and up are two."""
    return 2 if problem.gated else 1


def _by_fill(problem: Problem, columns: int) -> list[_Shape]:
    least, share = _least_tiles(problem), _sharing(problem, columns)
    short = problem.w_kind.format.element.bits <= 5
    if columns > 64:
        if problem.gated or share >= 1.6:
            return [_Shape(least, 8, 1, 1) if share < _ENOUGH else _Shape(least, 4, 2, None)]
        return [_Shape(2, 8, 1, 1 if share < 0.9 else 2)]  # two tiles share what they read of x
    if share < _ENOUGH:
        if problem.ragged:
            return [_Shape(2, 8, 1, 1)]
        return _large_blocks(least, columns) if short else [_Shape(least, 8, 1, 1)]
    if columns * least > _FEW_SUMS:
        return [_Shape(least, 4, 2, None)]
    if share < _NEARLY:
        return [_Shape(least, 8, 2, 1) if columns > 32 else _Shape(least, 4, 2, 1)]
    if columns <= 32:
        return [*_of_eight_warps(problem, columns), _Shape(least, 4, 4, None)]
    if problem.k >= 4096 and not _can_split(problem):
        return [_Shape(least, 8, 2, 2)]
    return [_Shape(least, 4, 2, None, _LONG), _Shape(least, 4, 4, None)]


def _large_blocks(least: int, columns: int, *, table: bool = False) -> list[_Shape]:
    """One to a multiprocessor, whose many rows share what they read of x."""
    most = _Shape(2, 8, 2, 1, _LONG, table)
    fewer = [_Shape(least, 16, 1, 1, _DEEP, table), _Shape(2, 8, 1, 1, _LONG, table)]
    return [most, *fewer] if columns <= 32 else fewer


def _table_shapes(problem: Problem, columns: int) -> list[_Shape]:
    """Where a table in shared memory pays, and leaves room for long stages."""
    format = problem.w_kind.format
    if not format.is_codebook or problem.ragged or columns > 64:
        return []
    least, share = _least_tiles(problem), _sharing(problem, columns)
    if share < _ENOUGH:
        return _large_blocks(least, columns, table=True)
    if share < _NEARLY:
        return [_Shape(least, 8, 2, 1, _LONG, shared_table=True)]
    split = _can_split(problem)
    if split and problem.gated:
        return []
    if columns <= 16:
        return [_Shape(least, 4, 4, None, _LONG, shared_table=True)]
    if columns <= 32 and format.element.bits == 5:
        shape = _Shape(least, 4, 4, None, _SHORT) if split else _Shape(least, 8, 2, 2, _LONG)
        return [replace(shape, shared_table=True)]
    return []


def _of_eight_warps(problem: Problem, columns: int) -> list[_Shape]:
    """Blocks of clusters, with room beside them for the next kernel's where they are few, an even
    number to a cluster; with room for long stages where tables of gate and up are in registers."""
    format = problem.w_kind.format
    if problem.gated:
        wanted = format.is_codebook and columns > 16 and _can_split(problem)
        return [_Shape(2, 4, 2, None, _LONG[1:])] if wanted else []
    few = columns <= 16 and weight_tiles(problem) / 4 <= 0.35 * multiprocessors(problem.target)
    even = _most_splits(problem, 4, 2 * 256) in (2, 4)
    return [_Shape(1, 4, 2, None, _LONG)] if few and even and format.element == E2M1 else []


def _can_split(problem: Problem) -> bool:
    """Whether so few blocks of 64 rows leave room for twice as many, and k for both."""
    return _most_splits(problem, 4 * _least_tiles(problem), 4 * 256) > 1


def _most_splits(problem: Problem, tiles: int, share: int) -> int:
    """While all clusters of so many blocks, of so many tiles each, have a place at once."""
    blocks = -(-weight_tiles(problem) // tiles)
    fitting = (
        splits
        for splits in _SPLITS
        if blocks <= cluster_places(problem.target, splits) and splits * share <= problem.k
    )
    return next(fitting, 1)


def _fit(problem: Problem, columns: int, shape: _Shape) -> Config | None:
    """With the longest and most stages that leave room for as many blocks as registers do."""
    limit = shared_limit(problem.target)
    warps = 16 if columns * shape.tiles <= _FEW_SUMS else 8
    if shape.row_warps * shape.k_warps > warps:
        return None
    for blocks in range(warps // (shape.row_warps * shape.k_warps), 0, -1):
        for chunk, stages in shape.stages:
            if columns > 64 and chunk > 128:
                continue
            share = chunk * shape.k_warps  # k that a block takes at a time
            split = shape.splits or _most_splits(problem, shape.tiles * shape.row_warps, share)
            if split * share > problem.k:
                split = 1
            config = Config(
                columns=columns,
                tiles=shape.tiles,
                row_warps=shape.row_warps,
                k_warps=shape.k_warps,
                stages=stages,
                chunk=chunk,
                blocks=blocks,
                splits=split,
                wide=True,
                cluster=split > 1,
                shared_table=shape.shared_table,
            )
            if blocks * (config.shared_bytes(problem) + STATIC_SHARED) <= limit:
                return config
    return None
