// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/dequantize/cuda.py.
#pragma once
#include "base.cuh"
#include "generated/rows.cuh"

namespace bs::rows {

struct DequantizeArguments {
    Matrices codes;  // [groups, n, bytes]
    Matrices scales;  // blocked: a row of atoms counts as a row
    Matrices tensor_scale;  // float32 [groups, n, 1]
    const float* codebook;
    Matrices out;  // [groups, n, k], 16-byte aligned rows
    Rows rows;
};
static_assert(sizeof(DequantizeArguments) == 136, "as ctypes has it");
static_assert(BS_OFFSET_OF(DequantizeArguments, codes) == 0, "");
static_assert(BS_OFFSET_OF(DequantizeArguments, scales) == 24, "");
static_assert(BS_OFFSET_OF(DequantizeArguments, tensor_scale) == 48, "");
static_assert(BS_OFFSET_OF(DequantizeArguments, codebook) == 72, "");
static_assert(BS_OFFSET_OF(DequantizeArguments, out) == 80, "");
static_assert(BS_OFFSET_OF(DequantizeArguments, rows) == 104, "");

}  // namespace bs::rows
