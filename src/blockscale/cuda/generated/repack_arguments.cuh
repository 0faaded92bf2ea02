// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/repack/cuda.py.
#pragma once
#include "base.cuh"

namespace bs::decode {

struct RepackArguments {
    const u8* codes;  // [groups, n, bytes]
    const u8* scale;
    u8* codes_out;  // [groups, tiles, bytes]
    u8* scale_out;
    long long code_group;  // bytes between groups
    long long code_row;  // bytes between rows
    long long scale_group;  // bytes between groups
    long long scale_row;  // bytes between rows
    int n;
    int k;
};
static_assert(sizeof(RepackArguments) == 72, "as ctypes has it");
static_assert(BS_OFFSET_OF(RepackArguments, codes) == 0, "");
static_assert(BS_OFFSET_OF(RepackArguments, scale) == 8, "");
static_assert(BS_OFFSET_OF(RepackArguments, codes_out) == 16, "");
static_assert(BS_OFFSET_OF(RepackArguments, scale_out) == 24, "");
static_assert(BS_OFFSET_OF(RepackArguments, code_group) == 32, "");
static_assert(BS_OFFSET_OF(RepackArguments, code_row) == 40, "");
static_assert(BS_OFFSET_OF(RepackArguments, scale_group) == 48, "");
static_assert(BS_OFFSET_OF(RepackArguments, scale_row) == 56, "");
static_assert(BS_OFFSET_OF(RepackArguments, n) == 64, "");
static_assert(BS_OFFSET_OF(RepackArguments, k) == 68, "");

}  // namespace bs::decode
