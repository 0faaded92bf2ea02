"""How a CTA of cuda/gemm/block_scaled.cuh divides its 512 columns of TMEM: the only place that
decides it.

Two accumulators of 256 and one set of scales for 128 k of MXFP8 need 524 columns, for 256 k 536:
more than there are. So accumulators overlap by as few columns as leave room for the sets that are
wanted, in the 32s that the epilogue reads. See layouts/tensor_memory.py for what lies where.
"""

from __future__ import annotations

from blockscale.layouts.tensor_memory import COLUMNS, TensorMemory

_READ = 32  # columns that the epilogue reads at a time
_MOST_SHARED = 128  # of which the next tile waits until they are read
# Sets in use at once: the products of one run while the next one's are queued. With fewer, the
# issuer would wait for products to end before it can copy scales; a fourth would find no stage.
_WANTED_SETS = 3
_FEWEST_SETS = 2


def plan(mma_n: int, scale_groups: int, stages: int) -> TensorMemory:
    """Two accumulators wherever two sets of scales find room; else one."""
    each = TensorMemory(mma_n, scale_groups, accumulators=1, shared=0, sets=1).set_columns
    for sets in range(min(_WANTED_SETS, stages), min(_FEWEST_SETS, stages) - 1, -1):
        over = max(2 * mma_n + sets * each - COLUMNS, 0)
        shared = -(-over // _READ) * _READ
        if shared <= _MOST_SHARED:
            return TensorMemory(mma_n, scale_groups, 2, shared, sets)
    return TensorMemory(mma_n, scale_groups, 1, 0, min(stages, (COLUMNS - mma_n) // each))


def defines(columns: TensorMemory) -> dict[str, str | int]:
    """As kernels/sm100_gemm.cu names them."""
    return {
        "BS_ACCUMULATORS": columns.accumulators,
        "BS_SHARED_COLUMNS": columns.shared,
        "BS_SCALE_COLUMN": columns.scale_column,
        "BS_SCALE_SETS": columns.sets,
    }
