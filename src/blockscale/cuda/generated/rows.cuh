// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/cuda/rows.py.
#pragma once
#include "base.cuh"

namespace bs::rows {

// [groups, rows, ...]
struct Matrices {
    u8* data;
    long long group_stride;  // bytes
    long long row_stride;  // bytes
};
static_assert(sizeof(Matrices) == 24, "as ctypes has it");
static_assert(BS_OFFSET_OF(Matrices, data) == 0, "");
static_assert(BS_OFFSET_OF(Matrices, group_stride) == 8, "");
static_assert(BS_OFFSET_OF(Matrices, row_stride) == 16, "");

}  // namespace bs::rows

namespace bs::rows {

// Division by a number that the host knows, of numbers below 2^31.
struct KnownDivisor {
    u32 divisor;
    u32 factor;
    u32 shift;
};
static_assert(sizeof(KnownDivisor) == 12, "as ctypes has it");
static_assert(BS_OFFSET_OF(KnownDivisor, divisor) == 0, "");
static_assert(BS_OFFSET_OF(KnownDivisor, factor) == 4, "");
static_assert(BS_OFFSET_OF(KnownDivisor, shift) == 8, "");

}  // namespace bs::rows

namespace bs::rows {

// Units of adjacent numbers, counted through all rows.
struct Rows {
    u32 units;  // in all
    KnownDivisor in_row;
    KnownDivisor in_group;
};
static_assert(sizeof(Rows) == 28, "as ctypes has it");
static_assert(BS_OFFSET_OF(Rows, units) == 0, "");
static_assert(BS_OFFSET_OF(Rows, in_row) == 4, "");
static_assert(BS_OFFSET_OF(Rows, in_group) == 16, "");

}  // namespace bs::rows
