"""How cuda/stream.cu is shaped to a problem: the Config, and the rule that picks it.

The measurements behind the rule are in docs/design/0003-cuda-decoding.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from blockscale.formats import E2M1, UE4M3, Float, Format
from blockscale.problem import Problem
from blockscale.runtime.cuda import multiprocessors, shared_limit

_COLUMNS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_WARPS = 8
_STATIC_SHARED = 2048  # bytes that the kernel has for itself


@dataclass(frozen=True)
class Config:
    columns: int  # rows of x that are multiplied at a time
    tiles: int  # of 16 rows of w, for each warp
    row_warps: int
    k_warps: int
    stages: int
    chunk: int  # k of a stage
    blocks: int  # that a multiprocessor should hold
    splits: int  # blocks that share the k of an output

    def __str__(self) -> str:
        split = f", k split in {self.splits}" if self.splits > 1 else ""
        return (
            f"{self.columns} rows of x at a time, {self.row_warps} x {self.k_warps} warps with "
            f"{16 * self.tiles} rows of w each, {self.stages} stages of k={self.chunk}{split}"
        )

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.k_warps

    @property
    def weight_rows(self) -> int:
        """That a block takes, of gate and up together."""
        return 16 * self.tiles * self.row_warps

    def output_tiles(self, problem: Problem) -> int:
        return -(-problem.n * (2 if problem.gated else 1) // self.weight_rows)

    def shared_bytes(self, format: Format) -> int:
        """As the constants of stream_shape.cuh have it."""
        codes = self.chunk * 2 * format.element.bits
        scales = 128 * max(1, self.chunk // (8 * format.block))
        stage = self.k_warps * self.columns * (2 * self.chunk + 16)
        stage += self.row_warps * self.k_warps * self.tiles * (codes + scales)
        scaled = self.columns >= 8 and scales_weights(format)
        decoded = 4 * scales * self.k_warps * self.weight_rows // 16 if scaled else 0
        sums = 4 * self.k_warps * self.columns * self.weight_rows
        return 2 * self.chunk + 32 + max(self.stages * stage + decoded, sums)


def scales_weights(format: Format) -> bool:
    """Whether weights are multiplied by their scales where x has many rows: NVFP4, exactly."""
    return (format.element, format.scale, format.block) == (E2M1, UE4M3, 16)


def matrices(problem: Problem) -> int:
    """Of weights that a launch reads, at the most."""
    return min(problem.groups, problem.m) if problem.ragged else problem.groups


@lru_cache(maxsize=4096)
def stream_configs(problem: Problem) -> tuple[Config, ...]:
    """All that fit into shared memory, the best by rule first."""
    format, columns = problem.w_kind.format, _columns(problem)
    limit = shared_limit(problem.target) - _STATIC_SHARED
    found = []
    for tiles, row_warps in _tilings(problem, columns):
        legal = []
        for stages, chunk in ((2, 256), (3, 128), (2, 128)):
            if chunk < 8 * format.block and columns < 8:
                continue  # eight blocks stand side by side
            shape = Config(columns, tiles, row_warps, _WARPS // row_warps, stages, chunk, 1, 1)
            shared = shape.shared_bytes(format)
            if shared <= limit:
                outputs = shape.output_tiles(problem) * matrices(problem)
                pairs = columns <= 16 and outputs > multiprocessors(problem.target)
                blocks = 2 if pairs and 2 * shared + _STATIC_SHARED <= limit else 1
                splits = _splits(problem, shape, outputs)
                legal.append(replace(shape, blocks=blocks, splits=splits))
        # Two blocks cover each other's waits; beyond that, long stages cost less than deep ones.
        found += sorted(legal, key=lambda config: -config.blocks)
    return tuple(found)


def _columns(problem: Problem) -> int:
    rows = problem.m
    if problem.ragged:  # as many as a group that has any will have on average
        groups = max(problem.groups, 1)
        busy = groups * (1 - (1 - 1 / groups) ** problem.m)
        rows = round(problem.m / max(busy, 1))
    format = problem.w_kind.format
    if isinstance(format.element, Float) and format.element.specials == "ieee":
        rows = max(rows, 8)  # side by side, an infinite weight would meet the zeros of other blocks
    # Two tiles a warp of so many columns would not fit into registers, and gating needs two.
    most = 32 if problem.gated and not scales_weights(format) else _COLUMNS[-1]
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
        tiles = (2, 1) if scales_weights(format) else (1,)
    every = [(each, row_warps) for each in tiles for row_warps in (8, 4, 2, 1)]
    if problem.gated:
        every = [(max(each, 2), row_warps) for each, row_warps in every]
    most = 16 if columns > 16 else 8  # tiles of a block
    if columns < 8 and format.element.bits >= 6:
        most = 2 if problem.gated else 1  # the bytes of more would leave room for one block only
    every = [each for each in dict.fromkeys(every) if _size(each) <= most]
    processors = multiprocessors(problem.target)
    weight_tiles = -(-problem.n // 16) * (2 if problem.gated else 1) * matrices(problem)

    def fill(tiling: tuple[int, int]) -> float:
        """Blocks to a multiprocessor."""
        return weight_tiles / (_size(tiling) * processors)

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
