// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/quantize/cuda.py.
#pragma once
#include "base.cuh"
#include "generated/rows.cuh"

namespace bs::rows {

struct QuantizeArguments {
    Matrices x;  // [groups, n, k], 16-byte aligned rows
    Matrices tensor_scale;  // float32 [groups, n, 1]; written where it is derived
    const float* codebook;
    Matrices importance;  // float32 [groups, k]: without rows
    Matrices codes;
    Matrices scales;  // blocked: a row of atoms counts as a row
    Rows rows;
    u32 share;  // units of a CTA: a multiple of its threads
};
static_assert(sizeof(QuantizeArguments) == 160, "as ctypes has it");
static_assert(BS_OFFSET_OF(QuantizeArguments, x) == 0, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, tensor_scale) == 24, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, codebook) == 48, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, importance) == 56, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, codes) == 80, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, scales) == 104, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, rows) == 128, "");
static_assert(BS_OFFSET_OF(QuantizeArguments, share) == 156, "");

}  // namespace bs::rows
