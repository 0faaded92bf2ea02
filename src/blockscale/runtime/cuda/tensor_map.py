"""CUtensorMap: what the copying hardware of a GPU must know of a tensor, from sm_90 on."""

from __future__ import annotations

from ctypes import addressof, c_ubyte, c_uint32, c_uint64, string_at
from functools import lru_cache

from blockscale.runtime.cuda.driver import check, context, load_driver

BYTES = 128
_ALIGNED = 64
# The driver's number, and bits of an element in memory. Slots (Blackwell): TMA spreads 16 elements
# to 16 bytes of shared memory.
_TYPES = {
    "uint8": (0, 8),
    "uint32": (2, 32),
    "float16": (6, 16),
    "bfloat16": (9, 16),
    "uint4_slots": (14, 4),
    "uint6_slots": (15, 6),
}
_NO_INTERLEAVE, _NO_SWIZZLE, _SWIZZLE_128, _L2_128, _ZEROS_OUTSIDE = 0, 0, 3, 2, 0
_SWIZZLED_BYTES = 128


def matrix_map(
    index: int,
    address: int,
    dtype: str,
    rows: int,
    columns: int,
    stride: int,
    box_rows: int,
    box_panels: int,
) -> bytes:
    """Of a matrix whose rows are `stride` elements apart, copied in boxes of `box_rows`.

    In shared memory a row of a box takes 128 bytes, a panel, its pieces of 16 bytes moved about as
    `wgmma` expects them. Where a box has several panels and columns are whole panels, these are a
    dimension of their own; else a box has one. What is outside the matrix is copied as zeros.
    """
    panel = 8 * _SWIZZLED_BYTES // _TYPES[dtype][1]
    sizes, box = (columns, rows), (panel, box_rows)
    if columns % panel or box_panels == 1:
        return tensor_map(index, address, dtype, sizes, (stride,), box, _SWIZZLE_128)
    # Strides need not grow from one dimension to the next: the hardware adds up what they give.
    in_panels, strides = (panel, rows, columns // panel), (stride, panel)
    return tensor_map(index, address, dtype, in_panels, strides, (*box, box_panels), _SWIZZLE_128)


def panel_map(
    index: int, address: int, dtype: str, rows: int, columns: int, box_rows: int
) -> bytes:
    """Of a contiguous matrix of bytes or slots, copied in boxes of `box_rows` rows and one panel:
    128 bytes of shared memory, swizzled as `matrix_map` says."""
    box = _SWIZZLED_BYTES, box_rows
    return tensor_map(index, address, dtype, (columns, rows), (columns,), box, _SWIZZLE_128)


@lru_cache(maxsize=1024)
def tensor_map(
    index: int,  # of the GPU
    address: int,
    dtype: str,
    sizes: tuple[int, ...],  # the fastest dimension first
    strides: tuple[int, ...],  # elements, of all dimensions but the first
    box: tuple[int, ...],
    swizzle: int = _NO_SWIZZLE,
) -> bytes:
    kind, bits = _TYPES[dtype]
    rank = len(sizes)
    memory = (c_ubyte * (BYTES + _ALIGNED))()
    start = -(-addressof(memory) // _ALIGNED) * _ALIGNED
    with context(index):  # a thread may not have used CUDA yet, or another GPU
        status = load_driver().cuTensorMapEncodeTiled(
            start,
            kind,
            rank,
            address,
            (c_uint64 * rank)(*sizes),
            (c_uint64 * (rank - 1))(*(stride * bits // 8 for stride in strides)),
            (c_uint32 * rank)(*box),
            (c_uint32 * rank)(*(1,) * rank),
            _NO_INTERLEAVE,
            swizzle,
            _L2_128,
            _ZEROS_OUTSIDE,
        )
    check(status, f"describing {dtype} {sizes}, {strides} apart, in boxes of {box}")
    return string_at(start, BYTES)
