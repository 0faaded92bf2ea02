// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/tensor_scale/cuda.py.
#pragma once
#include "base.cuh"
#include "generated/rows.cuh"

namespace bs::rows {

struct TensorScaleArguments {
    Matrices x;  // [groups, n, k], 16-byte aligned rows
    Rows rows;
    u32 units;  // of those that share a tensor scale
    u32* amax;  // [tensor scales], zeros
    u32* arrivals;  // [tensor scales], zeros
    float* out;  // [tensor scales]
};
static_assert(sizeof(TensorScaleArguments) == 80, "as ctypes has it");
static_assert(BS_OFFSET_OF(TensorScaleArguments, x) == 0, "");
static_assert(BS_OFFSET_OF(TensorScaleArguments, rows) == 24, "");
static_assert(BS_OFFSET_OF(TensorScaleArguments, units) == 52, "");
static_assert(BS_OFFSET_OF(TensorScaleArguments, amax) == 56, "");
static_assert(BS_OFFSET_OF(TensorScaleArguments, arrivals) == 64, "");
static_assert(BS_OFFSET_OF(TensorScaleArguments, out) == 72, "");

}  // namespace bs::rows
