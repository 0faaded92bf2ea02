"""Which Configs of cuda/stream.cu suit a problem: the rule that picks the first.

The measurements behind the rule are in docs/design/0003-cuda-decoding.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil

from blockscale.formats import E2M1, NVFP4, Float
from blockscale.kernels.cuda_config import (
    STATIC_SHARED,
    Config,
    cluster_places,
    matrices,
    rows_each,
    rows_of_most,
    scales_weights,
    weight_tiles,
    x_dtype,
)
from blockscale.kernels.cuda_wide import wide_configs
from blockscale.problem import Problem
from blockscale.runtime.cuda import can_cluster, can_overlap, multiprocessors, shared_limit

_COLUMNS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_WARPS = 8
_FEW_ROWS = 8  # of x, up to which each warp multiplies by itself
_FEW_TILES = 3  # of weights, for each multiprocessor
_SHORT, _LONG_K = 20000, 4096  # k of all tiles of a multiprocessor, and of one
_ROOMY = 200 << 10  # bytes of shared memory; with less, a table leaves room for few warps
# Tiles of a block that has a table in shared memory, and warps that share the k of each two.
_TABLE_WARPS = {2: 8, 4: 4, 8: 4, 14: 2, 16: 2}
_TABLE_K = 4096  # of a tile that takes as long as filling a table
_MOST_CLUSTER = 8  # blocks
_RESERVED = 1024  # bytes of shared memory that a block takes beside its own


@lru_cache(maxsize=4096)
def stream_configs(problem: Problem) -> tuple[Config, ...]:
    """All that fit into shared memory, the best by rule first."""
    narrow = _narrow_configs(problem)
    if rows_each(problem) <= _FEW_ROWS and not _is_quick_together(problem):
        return tuple(narrow)
    wide = wide_configs(problem)
    return (*narrow, *wide) if _is_quick_alone(problem) else (*wide, *narrow)


def stream_candidates(problem: Problem) -> list[Config]:
    """What measuring may find better: the same with k split, where splits can meet in a cluster."""
    by_rule = stream_configs(problem)
    split = [
        replace(config, splits=splits, cluster=True)
        for config in by_rule
        for splits in (2, 4)
        if can_cluster(problem.target) and splits * config.k_warps * config.chunk <= problem.k
    ]
    return list(dict.fromkeys((*by_rule, *split)))


def stream_shared(problem: Problem, config: Config) -> int:
    """Bytes of shared memory to ask for: what a block needs, or more.

    Where all blocks have a place at once, a third one must not fit beside two, nor a second one
    where nearly all have one, or each has a table: blocks of the next kernel start early, and would
    crowd on the few multiprocessors that this one leaves idle.
    """
    needed = config.shared_bytes(problem)
    blocks = config.output_tiles(problem) * config.splits * matrices(problem)
    places = config.blocks * multiprocessors(problem.target)
    if problem.ragged or blocks > places or not can_overlap(problem.target):
        return needed
    alone = blocks > 0.9 * places or config.shared_table
    most = config.blocks if alone else max(config.blocks, 2)
    of_all = shared_limit(problem.target) + _RESERVED
    return max(needed, of_all // (most + 1) - _RESERVED + 16)


def _is_quick_together(problem: Problem) -> bool:
    """Whether `wgmma` is quicker than `mma` for 5 to 8 rows: with few tiles it is, unless their k
    is long, and the scaled weights of these formats are exact."""
    few = tiles_each(problem) < _FEW_TILES and 4 < problem.m <= _FEW_ROWS
    split = problem.k >= _LONG_K and bool(_clusters_of_few(problem, _FEW_ROWS))
    alone = problem.ragged or problem.gated
    return few and not split and not alone and problem.w_kind.format.element == E2M1


def _is_quick_alone(problem: Problem) -> bool:
    """Whether `mma` is quicker than `wgmma`, whose blocks have at least 128 rows of gate and up:
    where those are few, or others fill the GPU better."""
    other = _blocks_of_sevens(problem, 16) or _clusters_of_few(problem, 16)
    return problem.gated and problem.m <= 16 and bool(other)


def _narrow_configs(problem: Problem) -> list[Config]:
    """In which each warp multiplies by itself, by `mma`.

    Where so many columns do not fit into shared memory, fewer take several turns; eight may have
    shorter stages than fewer.
    """
    columns = _columns(problem)
    fewer = [each for each in reversed(_COLUMNS) if 8 <= each < columns]
    every = (_configs_of_columns(problem, each) for each in (columns, *fewer, 8))
    return next(filter(None, every), [])


def _configs_of_columns(problem: Problem, columns: int) -> list[Config]:
    format = problem.w_kind.format
    limit = shared_limit(problem.target) - STATIC_SHARED
    found = _table_configs(problem, columns)
    found += _clusters_of_few(problem, columns)
    found += _small_blocks(problem, columns) + _pairs_of_splits(problem, columns)
    found += _blocks_of_groups(problem, columns) + _blocks_of_sevens(problem, columns)
    for tiles, row_warps in _tilings(problem, columns):
        legal = []
        for stages, chunk in ((2, 256), (3, 128), (2, 128)):
            if chunk < 8 * format.block and columns < 8:
                continue  # eight blocks stand side by side
            shape = Config(columns, tiles, row_warps, _WARPS // row_warps, stages, chunk, 1, 1)
            shared = shape.shared_bytes(problem)
            if shared <= limit:
                outputs = shape.output_tiles(problem) * matrices(problem)
                pairs = columns <= 16 and outputs > multiprocessors(problem.target)
                blocks = 2 if pairs and 2 * shared + STATIC_SHARED <= limit else 1
                splits = _splits(problem, shape, outputs)
                cluster = 1 < splits <= _MOST_CLUSTER and can_cluster(problem.target)
                legal.append(replace(shape, blocks=blocks, splits=splits, cluster=cluster))
        # Two blocks cover each other's waits; beyond that, long stages cost less than deep ones.
        found += sorted(legal, key=lambda config: -config.blocks)
    return found


def tiles_each(problem: Problem) -> float:
    """Of 16 rows of weights, for each multiprocessor."""
    return weight_tiles(problem) / multiprocessors(problem.target)


def _table_configs(problem: Problem, columns: int) -> list[Config]:
    """A table in shared memory, and one block to a multiprocessor, with as many rows as leave the
    least to the busiest; two smaller ones where these measured better."""
    format, limit = problem.w_kind.format, shared_limit(problem.target)
    if not format.is_codebook or problem.ragged or columns > _FEW_ROWS or limit < _ROOMY:
        return []
    tiles = tiles_each(problem)
    # Filling the table takes longer than it spares; not at 2048 x 5120, which measured better so.
    short = tiles * problem.k < _SHORT and (tiles >= 1 or problem.k < _LONG_K)
    if short and columns == 1 and format.element.bits in (3, 4):
        return []
    filling = _TABLE_K / problem.k  # takes as long as so many tiles
    size = min(_TABLE_WARPS, key=lambda each: (ceil(tiles / each) * (each + filling), -each))
    shapes = [
        Config(columns, 2, size // 2, k_warps, 2, 256, 1, 1, shared_table=True)
        for k_warps in (_TABLE_WARPS[size], _TABLE_WARPS[size] // 2)
    ]
    if size == 8 and columns <= 2 and format.element.bits > 2:  # two cover each other's waits
        shapes.insert(0, Config(columns, 2, 2, 2, 2, 256, 2, 1, shared_table=True))
    return [
        each
        for each in shapes
        if each.blocks * (each.shared_bytes(problem) + STATIC_SHARED) <= limit
    ]


def _small_blocks(problem: Problem, columns: int) -> list[Config]:
    """Where decoding takes long or k is short, and there is work for many: four blocks to a
    multiprocessor, whose warps wait for each other less. Not where each block must find its group
    first."""
    format = problem.w_kind.format
    slow = format.is_codebook or format.element.bits == 6
    short = columns == 1 and format.element.bits == 4 and problem.k <= 2048
    row_warps = 1 if slow else 2
    config = Config(columns, 2, row_warps, 4 // row_warps, 2, 256, 4, 1)
    blocks = weight_tiles(problem) / (2 * row_warps) / multiprocessors(problem.target)
    enough = blocks >= (3 if columns == 1 else 5)
    room = config.blocks * config.shared_bytes(problem) <= shared_limit(problem.target)
    wanted = columns < 8 and (slow or short) and not problem.ragged
    return [config] if wanted and enough and room else []


def _blocks_of_groups(problem: Problem, columns: int) -> list[Config]:
    """Ragged groups of few rows: blocks are short, and each must find its group before it copies
    anything. Small ones cover each other's waits, as many as registers allow."""
    format = problem.w_kind.format
    fill = weight_tiles(problem) / 8 / multiprocessors(problem.target)
    if not problem.ragged or columns > 8 or format.element.bits > 5 or fill < 1:
        return []
    row_warps, k_warps = (4, 1) if fill >= 2 else (2, 2)
    short = problem.k <= 512 and (columns == 8 or format.block == 16)
    tiles, chunk = 2, 128 if short else 256
    limit = shared_limit(problem.target)
    if short:
        most = 5 if columns == 4 or format.element.bits == 5 else 6
    else:
        most = 3 if format.is_codebook else 4 if columns == 8 else 5
    if problem.k <= 512 and columns in (4, 8) and fill >= 4:
        columns, tiles, chunk, most = 8, 4, 128, 4  # tiles that share what they read of x
    for blocks in range(most, 1, -1):
        config = Config(columns, tiles, row_warps, k_warps, 2, chunk, blocks, 1)
        if blocks * (config.shared_bytes(problem) + STATIC_SHARED) <= limit:
            return [config]
    return []


def _blocks_of_sevens(problem: Problem, columns: int) -> list[Config]:
    """Where rows are a little less than 14 tiles for each multiprocessor, as 7 * 2^12 are on 132 of
    them: blocks of seven times as many fill the GPU, those of a power of two leave a seventh idle.

    Where decoding takes long, two tiles to a warp share what they read of x; else two blocks cover
    each other's waits.
    """
    format = problem.w_kind.format
    slow = format.is_codebook or problem.gated
    config = Config(columns, 2 if slow else 1, 7, 2, 2, 256, 1 if slow else 2, 1)
    places = config.blocks * multiprocessors(problem.target)
    fill = config.output_tiles(problem) * matrices(problem) / places
    room = config.blocks * (config.shared_bytes(problem) + STATIC_SHARED)
    measured = not problem.ragged and columns in (8, 16) and format.element.bits <= 5
    fits = room <= shared_limit(problem.target) and 0.9 <= fill <= 1
    return [config] if measured and fits else []


def _pairs_of_splits(problem: Problem, columns: int) -> list[Config]:
    """Eight rows, and blocks of eight tiles for nearly every multiprocessor: two for each then."""
    config = Config(columns, 2, 4, 2, 2, 256, 2, 2, cluster=True)
    blocks = weight_tiles(problem) / 8 / multiprocessors(problem.target)
    room = config.blocks * config.shared_bytes(problem) + STATIC_SHARED
    fits = room <= shared_limit(problem.target) and 4 * config.chunk <= problem.k
    wanted = columns == 8 and 0.6 <= blocks < 1 and can_cluster(problem.target)
    return [config] if wanted and fits else []


def _clusters_of_few(problem: Problem, columns: int) -> list[Config]:
    """3 to 8 rows of E2M1, or gate and up of 9 to 16 of any format, and few tiles for each
    multiprocessor: blocks of four tiles, and clusters that share their k where there is room."""
    tiles, format = tiles_each(problem), problem.w_kind.format
    measured = columns == 8 or problem.gated or not 2048 < problem.k < _LONG_K
    plain = format.element == E2M1 and columns in (4, 8) and tiles < _FEW_TILES and measured
    gated = problem.gated and columns == 16 and tiles < 4 and problem.k >= _LONG_K
    if problem.ragged or tiles < 1.3 or not (plain or gated) or not can_cluster(problem.target):
        return []
    config = Config(columns, 1, 4, 2, 2, 256, 2, 1)
    if problem.k > 2048 or problem.gated:
        config = Config(columns, 2, 2, 4, 2, 256, 1, 1)
    if config.blocks * (config.shared_bytes(problem) + STATIC_SHARED) > shared_limit(
        problem.target
    ):
        return []
    clusters = config.output_tiles(problem) * matrices(problem)
    for splits in (3, 2) if config.blocks == 2 else (2,):
        places = config.blocks * cluster_places(problem.target, splits)
        if clusters <= places and splits * config.k_warps * config.chunk <= problem.k:
            return [replace(config, splits=splits, cluster=True)]
    return [config] if gated else []


def _columns(problem: Problem) -> int:
    rows = rows_of_most(problem)
    if rows_each(problem) <= _FEW_ROWS:
        rows = min(rows, _FEW_ROWS)
    format = problem.w_kind.format
    if isinstance(format.element, Float) and format.element.specials == "ieee":
        rows = max(rows, 8)  # side by side, an infinite weight would meet the zeros of other blocks
    if format == NVFP4 and 2 < rows <= 8 and "@" not in problem.x and _blocks_of_sevens(problem, 8):
        rows = 8  # whose weights are scaled, instead of many sums
    # Two tiles a warp of so many columns would not fit into registers, and gating needs two.
    scaled = scales_weights(format, x_dtype(problem), 64)
    most = 32 if problem.gated and not scaled else _COLUMNS[-1]
    return next((each for each in _COLUMNS if each >= min(rows, most)), most)


def _tilings(problem: Problem, columns: int) -> list[tuple[int, int]]:
    """tiles and row warps, the best first.

    With few rows of x, blocks should be more than multiprocessors, so that the loads of one cover
    the arithmetic of another. With many, they should have more rows of w, since each reads all of
    x; one to a multiprocessor then.
    """
    format = problem.w_kind.format
    tiles: tuple[int, ...]
    if columns < 8:
        tiles = (1, 2) if format.element.bits >= 6 else (2, 1)
    elif columns <= 16:
        tiles = (2, 1)
    elif columns <= 32:
        tiles = (4, 2, 1)
    else:
        tiles = (2, 1) if scales_weights(format, x_dtype(problem), columns) else (1,)
    every = [(each, row_warps) for each in tiles for row_warps in (8, 4, 2, 1)]
    if problem.gated:
        every = [(max(each, 2), row_warps) for each, row_warps in every]
    most = 16 if columns > 16 else 8  # tiles of a block
    if columns < 8 and format.element.bits >= 6:
        most = 2 if problem.gated else 1  # the bytes of more would leave room for one block only
    every = [each for each in dict.fromkeys(every) if _size(each) <= most]
    processors = multiprocessors(problem.target)
    tiles_in_all = weight_tiles(problem)

    def fill(tiling: tuple[int, int]) -> float:
        """Blocks to a multiprocessor."""
        return tiles_in_all / (_size(tiling) * processors)

    enough = [each for each in every if fill(each) >= (0.6 if columns > 16 else 1.2)]
    if columns >= 8:  # but not by blocks of few rows, while there are nearly enough of larger ones
        enough = [each for each in enough if _size(each) >= 4] or [
            each for each in every if _size(each) >= 4 and fill(each) >= 0.6
        ]
    few = [each for each in every if each not in enough]
    return sorted(enough, key=_size, reverse=True) + sorted(few, key=_size)


def _size(tiling: tuple[int, int]) -> int:
    return tiling[0] * tiling[1]


def _splits(problem: Problem, shape: Config, outputs: int) -> int:
    """As many as fill the GPU once, while every warp has a chunk.

    One where a block may have to take several turns over rows of x: all turns of an output use the
    same counter and the same place for sums, and one split may be turns ahead of another.
    """
    if problem.m > shape.columns:
        return 1
    chunks = -(-problem.k // shape.chunk)
    most = multiprocessors(problem.target) // max(outputs, 1)
    return max(1, min(most, chunks // shape.k_warps))
