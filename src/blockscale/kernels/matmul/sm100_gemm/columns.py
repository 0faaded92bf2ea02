"""How a CTA of cuda/gemm/block_scaled.cuh divides its 512 columns of TMEM: the only place that
decides it.

Two accumulators of 256 and one set of scales for 128 k of MXFP8 need 524 columns, for 256 k 536:
more than there are. See kernels/matmul/tmem.py for how they overlap.
"""

from __future__ import annotations

from blockscale.kernels.matmul.tmem import divide
from blockscale.layouts import ScaledMemory


def plan(mma_n: int, scale_groups: int, stages: int) -> ScaledMemory:
    each = ScaledMemory(mma_n, 1, 0, 1, scale_groups).set_columns
    return ScaledMemory(mma_n, *divide(mma_n, each, stages), scale_groups)


def defines(columns: ScaledMemory) -> dict[str, str | int]:
    """As kernels/sm100_gemm.cu names them."""
    return {
        "BS_ACCUMULATORS": columns.accumulators,
        "BS_SHARED_COLUMNS": columns.shared,
        "BS_SCALE_COLUMN": columns.first_set,
        "BS_SCALE_SETS": columns.sets,
    }
