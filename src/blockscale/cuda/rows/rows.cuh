// Where work lies in [groups, n, k]: units of adjacent numbers, numbered through all rows.
#pragma once
#include "numbers/exact.cuh"

// Division by a number that the host knows, of numbers below 2^31.
struct KnownDivisor {
    u32 divisor, factor, shift;

    EXACT u32 divide(u32 number) const {
        return (__umulhi(number, factor) + number) >> shift;
    }
};

struct Matrices {
    u8* data;
    long long group_stride, row_stride;  // bytes

    EXACT u8* row(u32 group, u32 row) const {
        return data + group * group_stride + row * row_stride;
    }
};

struct Place {
    u32 group, row, unit;  // of the row
};

struct Rows {
    u32 units;  // in all
    KnownDivisor in_row, in_group;

    EXACT Place place(u32 unit) const {
        const u32 row = in_row.divide(unit), group = in_group.divide(row);
        return {group, row - group * in_group.divisor, unit - row * in_row.divisor};
    }
};
