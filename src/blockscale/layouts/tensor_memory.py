"""TMEM of a CTA on Blackwell, 128 lanes by 512 columns of 32 bits: where a block-scaled product has
its sums and its scales.

    accumulator 0 | shared | accumulator 1 | sets of scales

Lane i of an accumulator has the sums of row i of x, a column for each row of w. A set has the
scales of a stage: first of x, then of w, four columns for 128 rows and a group of four blocks
along k. A scale is a byte; the 32 rows of a column are there four times, once for each quarter of
the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from blockscale.layouts.algebra import Strided

LANES, COLUMNS = 128, 512
_WORD = 4  # bytes of a lane and column
_LANE = COLUMNS * _WORD


class Region(NamedTuple):
    """Columns start .. stop - 1 of all lanes."""

    name: str
    start: int
    stop: int


def sums(mma_n: int) -> Strided:
    """(row of x, row of w) -> byte behind the accumulator's first, counted lane after lane."""
    return Strided((LANES, mma_n), (_LANE, _WORD))


def scales(rows: int, scale_groups: int) -> Strided:
    """(row, block along k) -> byte behind the first of these scales, in the first 32 lanes."""
    atoms = -(-rows // 128)
    return Strided(
        ((32, 4, atoms), (4, scale_groups)), ((_LANE, _WORD, 4 * _WORD), (1, 4 * atoms * _WORD))
    )


@dataclass(frozen=True)
class TensorMemory:
    """How a kernel divides the columns."""

    mma_n: int  # columns of an accumulator
    scale_groups: int  # of a stage
    accumulators: int
    shared: int  # columns that both accumulators have
    sets: int

    @property
    def x_columns(self) -> int:
        """Of a set: scales of the 128 rows of x of a CTA."""
        return 4 * self.scale_groups

    @property
    def set_columns(self) -> int:
        """Every CTA has the scales of all rows of w."""
        return self.x_columns * (1 + self.mma_n // 128)

    @property
    def scale_column(self) -> int:
        """The first that no accumulator has."""
        return self.accumulators * self.mma_n - self.shared

    @property
    def used(self) -> int:
        return self.scale_column + self.sets * self.set_columns

    @property
    def unshared(self) -> int:
        """What two accumulators and one set would need side by side."""
        return 2 * self.mma_n + self.set_columns

    def regions(self) -> Iterator[Region]:
        for i in range(self.accumulators):
            start = i * (self.mma_n - self.shared)
            yield Region(f"accumulator {i}", start, start + self.mma_n)
        for i in range(self.sets):
            start = self.scale_column + i * self.set_columns
            w_start = start + self.x_columns
            yield Region(f"set {i}, scales of x", start, w_start)
            yield Region(f"set {i}, scales of w", w_start, start + self.set_columns)

    def __str__(self) -> str:
        count = f"{self.accumulators} accumulator{'s' * (self.accumulators > 1)}"
        overlap = f" that share {self.shared}" if self.shared else ""
        sets = f"{self.sets} set{'s' * (self.sets > 1)} of {self.set_columns} for scales"
        return f"{self.used} of {COLUMNS} columns: {count} of {self.mma_n}{overlap}, {sets}"
