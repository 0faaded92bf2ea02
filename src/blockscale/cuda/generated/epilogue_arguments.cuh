// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/cuda/epilogue.py.
#pragma once
#include "base.cuh"

namespace bs::gemm {

// One product before its activation.
struct EpilogueBranch {
    const float* sums;  // [groups, rows, columns]
    long long sums_row;  // elements between rows
    long long sums_group;  // elements between groups
    const float* tensor_scale;  // one per group, or null
    long long tensor_scale_group;  // elements between groups
    const void* bias;  // [groups, columns], or null
    long long bias_group;  // elements between groups
    int bias_dtype;
};
static_assert(sizeof(EpilogueBranch) == 64, "as ctypes has it");
static_assert(BS_OFFSET_OF(EpilogueBranch, sums) == 0, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, sums_row) == 8, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, sums_group) == 16, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, tensor_scale) == 24, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, tensor_scale_group) == 32, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, bias) == 40, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, bias_group) == 48, "");
static_assert(BS_OFFSET_OF(EpilogueBranch, bias_dtype) == 56, "");

}  // namespace bs::gemm

namespace bs::gemm {

struct EpilogueArguments {
    EpilogueBranch gate;  // or the only one
    EpilogueBranch up;
    const float* x_scale;  // [groups, rows], or null
    void* out;  // [groups, rows, columns]
    long long out_row;  // elements between rows
    long long out_group;  // elements between groups
    int rows;
    int columns;
    int adjacent;  // four columns are one load and one store
    float factor;  // of every sum: a power of two
    float alpha;
    float limit;
};
static_assert(sizeof(EpilogueArguments) == 184, "as ctypes has it");
static_assert(BS_OFFSET_OF(EpilogueArguments, gate) == 0, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, up) == 64, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, x_scale) == 128, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, out) == 136, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, out_row) == 144, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, out_group) == 152, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, rows) == 160, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, columns) == 164, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, adjacent) == 168, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, factor) == 172, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, alpha) == 176, "");
static_assert(BS_OFFSET_OF(EpilogueArguments, limit) == 180, "");

}  // namespace bs::gemm
