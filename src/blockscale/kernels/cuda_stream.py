"""How cuda/stream.cu is shaped to a problem: the Config, and the rule that picks it.

The measurements behind the rule are in docs/design/0003-cuda-decoding.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from blockscale.formats import Float, Format
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
        """As the constants of stream.cu have it."""
        codes = self.chunk * 2 * format.element.bits
        scales = 128 * max(1, self.chunk // (8 * format.block))
        stage = self.k_warps * self.columns * (2 * self.chunk + 16)
        stage += self.row_warps * self.k_warps * self.tiles * (codes + scales)
        decoded = 0 if self.columns < 8 else 4 * scales * self.k_warps * self.weight_rows // 16
        sums = 4 * self.k_warps * self.columns * self.weight_rows
        return 2 * self.chunk + 32 + max(self.stages * stage + decoded, sums)


def matrices(problem: Problem) -> int:
    """Of weights that a launch reads, at the most."""
    return min(problem.groups, problem.m) if problem.ragged else problem.groups


@lru_cache(maxsize=4096)
def stream_configs(problem: Problem) -> tuple[Config, ...]:
    """All that fit into shared memory, the best by rule first."""
    format, columns = problem.w_kind.format, _columns(problem)
    limit = shared_limit(problem.target) - _STATIC_SHARED
    found = []
    for tiles, row_warps, stages, chunk in _shapes(problem, columns):
        shape = columns, tiles, row_warps, _WARPS // row_warps, stages, chunk
        shared = Config(*shape, 1, 1).shared_bytes(format)
        if shared <= limit:
            blocks = 2 if columns <= 16 and 2 * shared <= limit - _STATIC_SHARED else 1
            outputs = Config(*shape, 1, 1).output_tiles(problem) * matrices(problem)
            found.append(Config(*shape, blocks, _splits(problem, outputs, shape)))
    return tuple(found)


def _columns(problem: Problem) -> int:
    rows = problem.m
    if problem.ragged:  # as many as a group that has any will have on average
        groups = max(problem.groups, 1)
        busy = groups * (1 - (1 - 1 / groups) ** problem.m)
        rows = round(problem.m / max(busy, 1))
    element = problem.w_kind.format.element
    if isinstance(element, Float) and element.specials == "ieee":
        rows = max(rows, 8)  # side by side, an infinite weight would meet the zeros of other blocks
    return next((each for each in _COLUMNS if each >= rows), _COLUMNS[-1])


def _shapes(problem: Problem, columns: int) -> Iterator[tuple[int, int, int, int]]:
    """tiles, row warps, stages, chunk: the best first.

    With few rows of x, blocks should be nearly twice as many as multiprocessors, so that the loads
    of one cover the arithmetic of another. With many, they should have more rows of w, since each
    reads all of x; one to a multiprocessor then.
    """
    format = problem.w_kind.format
    wanted = (1.6 if columns < 8 else 0.6) * multiprocessors(problem.target)
    weight_tiles = -(-problem.n // 16) * (2 if problem.gated else 1) * matrices(problem)
    wide = 1 if format.element.bits >= 6 and columns < 8 and not problem.gated else 2
    most = _WARPS if columns > 16 else 4
    candidates = [(wide, row_warps) for row_warps in (8, 4, 2, 1) if row_warps <= most]
    if not problem.gated:
        candidates += [(3 - wide, row_warps) for row_warps in (1, 2, 4)]
    enough = [each for each in candidates if weight_tiles >= wanted * each[0] * each[1]]
    few = [each for each in candidates if each not in enough]
    smallest_first = sorted(few, key=lambda each: each[0] * each[1])
    chunk = 256 if columns <= 16 else 128
    for tiles, row_warps in enough + smallest_first:
        for stages, depth in dict.fromkeys(((2, chunk), (3, 128), (2, 128))):
            if depth >= 8 * format.block or columns >= 8:
                yield tiles, row_warps, stages, depth


def _splits(problem: Problem, outputs: int, shape: tuple[int, ...]) -> int:
    """As many as fill the GPU once, while every warp has a chunk."""
    k_warps, chunk = shape[3], shape[5]
    chunks = -(-problem.k // chunk)
    return max(1, min(multiprocessors(problem.target) // max(outputs, 1), chunks // k_warps))
