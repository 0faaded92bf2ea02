"""CUtensorMap: what the copying hardware of a GPU must know of a matrix, from sm_90 on."""

from __future__ import annotations

from ctypes import addressof, c_ubyte, c_uint32, c_uint64, string_at
from functools import lru_cache

from blockscale.runtime.cuda.driver import check, load_driver

BYTES = 128
_ALIGNED = 64
_TYPES = {"float16": 6, "bfloat16": 9}
_ITEM = 2  # bytes
_COLUMNS = 64  # of a box: as many as swizzled rows of 128 bytes hold
_NO_INTERLEAVE, _SWIZZLE_128, _L2_128, _ZEROS_OUTSIDE = 0, 3, 2, 0


@lru_cache(maxsize=1024)
def matrix_map(
    address: int, dtype: str, rows: int, columns: int, stride: int, box_rows: int
) -> bytes:
    """Of a matrix whose rows are `stride` elements apart, copied in boxes of `box_rows` by 64.

    In shared memory a row of a box takes 128 bytes, its pieces of 16 bytes moved about as `wgmma`
    expects them. What is outside the matrix is copied as zeros.
    """
    memory = (c_ubyte * (BYTES + _ALIGNED))()
    start = -(-addressof(memory) // _ALIGNED) * _ALIGNED
    status = load_driver().cuTensorMapEncodeTiled(
        start,
        _TYPES[dtype],
        2,
        address,
        (c_uint64 * 2)(columns, rows),
        (c_uint64 * 1)(stride * _ITEM),
        (c_uint32 * 2)(_COLUMNS, box_rows),
        (c_uint32 * 2)(1, 1),
        _NO_INTERLEAVE,
        _SWIZZLE_128,
        _L2_128,
        _ZEROS_OUTSIDE,
    )
    check(status, f"describing {rows} x {columns} numbers, {stride} apart, in boxes of {box_rows}")
    return string_at(start, BYTES)
