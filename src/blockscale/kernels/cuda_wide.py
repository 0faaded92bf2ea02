"""Configs of cuda/stream.cu in which four warps multiply together, by `wgmma`: on Hopper.

The measurements behind the rule are in docs/design/0003-cuda-decoding.md.
"""

from __future__ import annotations

from blockscale.kernels.cuda_config import (
    STATIC_SHARED,
    Config,
    rows_of_most,
    scales_weights,
    weight_tiles,
    x_dtype,
)
from blockscale.problem import Problem
from blockscale.runtime.cuda import can_cluster, has_wgmma, multiprocessors, shared_limit

_COLUMNS = (16, 24, 32, 48, 64, 96, 128)
_MOST_SPLITS = 8  # blocks of a cluster
_ENOUGH = 1.8  # see _sharing
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


def fills(problem: Problem) -> bool:
    """Whether there is a tile of weights for nearly every warp that the GPU has."""
    return _sharing(problem, _columns(problem)) < _ENOUGH


def _warps(sums: int, problem: Problem) -> int:
    return (16 if sums <= _FEW_SUMS else 8) * multiprocessors(problem.target)


def wide_configs(problem: Problem) -> list[Config]:
    """The best by rule first.

    Sixteen warps keep a multiprocessor busy. While there are enough tiles of weights, a warp takes
    all k of one; with fewer, warps of a block share the k, and then blocks of a cluster.
    """
    if not is_wide(problem):
        return []
    columns = _columns(problem)
    share = _sharing(problem, columns)
    least = 2 if problem.gated else 1
    shapes: list[tuple[int, int, int, int | None]] = []  # tiles, row warps, k warps, splits
    if columns > 64 and not problem.gated and share < 1.6:  # two tiles share what they read of x
        shapes.append((2, 8, 1, 1 if share < 0.9 else 2))
    elif share < _ENOUGH:
        shapes.append((2 if problem.ragged else least, 8, 1, 1))
    elif columns > 64:
        shapes.append((least, 4, 2, None))
    elif share < 3.5:
        shapes.append((least, 8, 1, 2) if columns > 32 else (least, 4, 2, 1))
    else:
        shapes.append((least, 4, 4, None))
    # What else may be worth measuring, or fits where the first ones do not.
    shapes += [(least, 8, 1, 1), (least, 4, 2, 1), (least, 4, 4, 1), (least, 4, 1, 1)]
    found = [_fit(problem, columns, *shape) for shape in dict.fromkeys(shapes)]
    return list(dict.fromkeys(each for each in found if each is not None))


def _most_splits(problem: Problem, tiles: int, share: int) -> int:
    """A power of two, while blocks of so many tiles leave room: clusters of large blocks that would
    take nearly all multiprocessors wait for each other."""
    blocks, splits = -(-weight_tiles(problem) // tiles), 1
    most = 0.7 * multiprocessors(problem.target)
    while splits < _MOST_SPLITS and 2 * splits * blocks <= most and 2 * splits * share <= problem.k:
        splits *= 2
    return splits


def _fit(
    problem: Problem, columns: int, tiles: int, row_warps: int, k_warps: int, splits: int | None
) -> Config | None:
    """With the longest and most stages that leave room for as many blocks as registers do; split in
    as many as the GPU has room for, if no number is given."""
    limit = shared_limit(problem.target) - STATIC_SHARED
    warps = 16 if columns * tiles <= _FEW_SUMS else 8
    if row_warps * k_warps > warps:
        return None
    for blocks in range(warps // (row_warps * k_warps), 0, -1):
        for chunk, stages in ((256, 3), (256, 2), (128, 3), (128, 2)):
            if columns > 64 and chunk > 128:
                continue
            share = chunk * k_warps  # k that a block takes at a time
            split = splits or _most_splits(problem, tiles * row_warps, share)
            if split * share > problem.k or not can_cluster(problem.target):
                split = 1
            config = Config(
                columns=columns,
                tiles=tiles,
                row_warps=row_warps,
                k_warps=k_warps,
                stages=stages,
                chunk=chunk,
                blocks=blocks,
                splits=split,
                wide=True,
                cluster=split > 1,
            )
            if blocks * (config.shared_bytes(problem) + STATIC_SHARED) <= limit + STATIC_SHARED:
                return config
    return None
