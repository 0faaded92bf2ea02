// Where work lies in [groups, n, k]: units of adjacent numbers, counted through all rows.
#pragma once
#include "generated/rows.cuh"

namespace bs::rows {

// Of a number below 2^31: see known_divisor in blockscale/kernels/cuda/rows.py.
BS_DEVICE u32 divide(u32 number, const KnownDivisor& by) {
    return (__umulhi(number, by.factor) + number) >> by.shift;
}

BS_DEVICE u8* row_of(const Matrices& matrices, u32 group, u32 row) {
    return matrices.data + group * matrices.group_stride + row * matrices.row_stride;
}

struct Place {
    u32 group, row, unit;  // of the row
};

BS_DEVICE Place place_of(const Rows& rows, u32 unit) {
    const u32 row = divide(unit, rows.in_row), group = divide(row, rows.in_group);
    return {group, row - group * rows.in_group.divisor, unit - row * rows.in_row.divisor};
}

}  // namespace bs::rows
