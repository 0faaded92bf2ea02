// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/dequantize/cuda_fragments.py.
#pragma once
#include "base.cuh"

namespace bs::decode {

struct DequantizeFragmentsArguments {
    const u8* codes;  // of the first tile
    const u8* scale;
    const float* table;  // of all codes
    const float* tensor_scale;  // one per row, or null
    void* out;  // [groups, rows, k], 16-byte aligned rows
    long long code_stride;  // bytes between groups
    long long scale_stride;  // bytes between groups
    long long out_row;  // elements between rows
    long long out_group;  // elements between groups
    long long tensor_scale_row;  // elements between rows
    long long tensor_scale_group;  // elements between groups
    int rows;
    int k;
};
static_assert(sizeof(DequantizeFragmentsArguments) == 96, "as ctypes has it");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, codes) == 0, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, scale) == 8, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, table) == 16, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, tensor_scale) == 24, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, out) == 32, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, code_stride) == 40, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, scale_stride) == 48, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, out_row) == 56, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, out_group) == 64, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, tensor_scale_row) == 72, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, tensor_scale_group) == 80, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, rows) == 88, "");
static_assert(BS_OFFSET_OF(DequantizeFragmentsArguments, k) == 92, "");

}  // namespace bs::decode
