"""How a CTA of cuda/gemm/block_scaled.cuh divides its 512 columns of TMEM: the only place that
counts them.

    accumulator 0 | shared | accumulator 1 | sets of scales

An accumulator has a column for each row of w. Scales of 128 rows take four columns for four blocks
along k, and a stage has its scales in one set of columns. Two accumulators of 256 and one set for
128 k of MXFP8 need 524 columns, for 256 k 536: more than there are. So accumulators overlap by as
few columns as leave room for the sets that are wanted, in the 32s that the epilogue reads.
"""

from __future__ import annotations

from typing import NamedTuple

TOTAL = 512
_READ = 32  # columns that the epilogue reads at a time
_MOST_SHARED = 128  # of which the next tile waits until they are read
# Sets in use at once: the products of one run while the next one's are queued. With fewer, the
# issuer would wait for products to end before it can copy scales; a fourth would find no stage.
_WANTED_SETS = 3
_FEWEST_SETS = 2


class Columns(NamedTuple):
    accumulators: int
    shared: int  # columns that both accumulators have
    sets: int
    set_columns: int

    def defines(self, mma_n: int) -> dict[str, str | int]:
        """As kernels/sm100_gemm.cu names them."""
        return {
            "BS_ACCUMULATORS": self.accumulators,
            "BS_SHARED_COLUMNS": self.shared,
            "BS_SCALE_COLUMN": self.of_accumulators(mma_n),
            "BS_SCALE_SETS": self.sets,
        }

    def of_accumulators(self, mma_n: int) -> int:
        return self.accumulators * mma_n - self.shared

    def used(self, mma_n: int) -> int:
        return self.of_accumulators(mma_n) + self.sets * self.set_columns


def set_columns(mma_n: int, scale_groups: int) -> int:
    """Of the scales of a stage: x has 128 rows in a CTA, and every CTA has all rows of w."""
    return 4 * scale_groups * (1 + mma_n // 128)


def unshared(mma_n: int, scale_groups: int) -> int:
    """What two accumulators and one set would need side by side."""
    return 2 * mma_n + set_columns(mma_n, scale_groups)


def plan(mma_n: int, scale_groups: int, stages: int) -> Columns:
    """Two accumulators wherever two sets of scales find room; else one."""
    each = set_columns(mma_n, scale_groups)
    for sets in range(min(_WANTED_SETS, stages), min(_FEWEST_SETS, stages) - 1, -1):
        over = max(2 * mma_n + sets * each - TOTAL, 0)
        shared = -(-over // _READ) * _READ
        if shared <= _MOST_SHARED:
            return Columns(2, shared, sets, each)
    return Columns(1, 0, min(stages, (TOTAL - mma_n) // each), each)
