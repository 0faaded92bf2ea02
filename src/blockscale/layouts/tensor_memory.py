"""TMEM of a CTA on Blackwell, 128 lanes by 512 columns of 32 bits: where a product has its sums,
and what it reads there.

    accumulator 0 | shared | accumulator 1 | sets, one for the products of a stage

Of two block-scaled operands, lane i of an accumulator has the sums of row i of x, a column for each
row of w. A set has the scales of a stage: first of x, then of w, four columns for 128 rows and a
group of four blocks along k. A scale is a byte; the 32 rows of a column are there four times, once
for each quarter of the lanes.

Of decoded weights, lane i has row i of w: an accumulator a column for each row of x, a set a column
for two k.
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
    accumulators: int
    shared: int  # columns that both accumulators have
    sets: int

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Of a set: what it has, and how many columns of that."""
        raise NotImplementedError

    @property
    def set_columns(self) -> int:
        return sum(columns for _, columns in self.parts)

    @property
    def first_set(self) -> int:
        """The first column that no accumulator has."""
        return self.accumulators * self.mma_n - self.shared

    @property
    def used(self) -> int:
        return self.first_set + self.sets * self.set_columns

    @property
    def unshared(self) -> int:
        """What two accumulators and one set would need side by side."""
        return 2 * self.mma_n + self.set_columns

    def regions(self) -> Iterator[Region]:
        for i in range(self.accumulators):
            start = i * (self.mma_n - self.shared)
            yield Region(f"accumulator {i}", start, start + self.mma_n)
        start = self.first_set
        for i in range(self.sets):
            for name, columns in self.parts:
                yield Region(f"set {i}, {name}", start, start + columns)
                start += columns

    def __str__(self) -> str:
        count = f"{self.accumulators} accumulator{'s' * (self.accumulators > 1)}"
        overlap = f" that share {self.shared}" if self.shared else ""
        held = self.parts[0][0].split()[0]
        sets = f"{self.sets} set{'s' * (self.sets > 1)} of {self.set_columns} for {held}"
        return f"{self.used} of {COLUMNS} columns: {count} of {self.mma_n}{overlap}, {sets}"


@dataclass(frozen=True)
class ScaledMemory(TensorMemory):
    """Of two block-scaled operands."""

    scale_groups: int  # of a stage

    @property
    def x_columns(self) -> int:
        """Of a set: scales of the 128 rows of x of a CTA."""
        return 4 * self.scale_groups

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Every CTA has the scales of all rows of w."""
        w_columns = self.x_columns * (self.mma_n // 128)
        return ("scales of x", self.x_columns), ("scales of w", w_columns)


@dataclass(frozen=True)
class DecodedMemory(TensorMemory):
    """Of weights that are decoded to 16-bit numbers."""

    tile_k: int  # of a stage

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        return (("weights", self.tile_k // 2),)
