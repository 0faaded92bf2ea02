"""How GEMMs by tcgen05 share the 512 columns of TMEM out among accumulators and sets of columns for
what the products of a stage read there. It belongs to none of these kernels.

Two accumulators of 256 and one set need more columns than there are. So accumulators overlap by as
few columns as leave room for the sets that are wanted, in the 32s that the epilogue reads. See
layouts/tensor_memory.py for what lies where.
"""

from __future__ import annotations

from typing import NamedTuple

from blockscale.layouts.tensor_memory import COLUMNS

_READ = 32  # columns that the epilogue reads at a time
_MOST_SHARED = 128  # of which the next tile waits until they are read
# Sets in use at once: the products of one run while the next one's are queued. With fewer, whoever
# fills a set would wait for products to end.
_WANTED_SETS = 3
_FEWEST_SETS = 2


class Division(NamedTuple):
    accumulators: int
    shared: int  # columns that both accumulators have
    sets: int


def divide(mma_n: int, set_columns: int, stages: int) -> Division:
    """Accumulators of `mma_n` columns: two wherever two sets find room; else one."""
    for sets in range(min(_WANTED_SETS, stages), min(_FEWEST_SETS, stages) - 1, -1):
        over = max(2 * mma_n + sets * set_columns - COLUMNS, 0)
        shared = -(-over // _READ) * _READ
        if shared <= _MOST_SHARED:
            return Division(2, shared, sets)
    return Division(1, 0, min(stages, (COLUMNS - mma_n) // set_columns))
