// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/matmul/block_scaled/arguments.py.
#pragma once
#include "base.cuh"
#include "generated/gemm_arguments.cuh"

namespace bs::gemm {

// Of kernels for which TMA copies codes and blocked scales of x and weights.
struct alignas(64) BlockScaledArguments {
    TensorMap x_map;
    TensorMap x_scale_map;
    TensorMap code_map[2];
    TensorMap scale_map[2];
    int m;
    int n;
    int k;
    int weights_unchanged;  // no kernel that may still run writes the weights
    int bias_dtype;
    int out_dtype;
    void* out;  // [rows, n]
    long long out_stride;  // elements from one row to the next
    const void* x;  // [rows, k]
    long long x_stride;  // elements, or bytes of codes, from one row to the next
    const float* x_scale;  // one per row, or null
    Weight weight[2];  // gate and up, or one
    int groups;
    int sizes_are_64_bits;
    int activation;
    float alpha;
    float limit;
    const u8* x_block_scale;  // where x is codes
    long long x_block_stride;
    const void* group_sizes;
    int band;  // tiles of x whose rows stay in the L2 cache
    u8 end[60];
};
static_assert(sizeof(BlockScaledArguments) == 1024, "as ctypes has it");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x_map) == 0, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x_scale_map) == 128, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, code_map) == 256, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, scale_map) == 512, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, m) == 768, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, n) == 772, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, k) == 776, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, weights_unchanged) == 780, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, bias_dtype) == 784, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, out_dtype) == 788, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, out) == 792, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, out_stride) == 800, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x) == 808, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x_stride) == 816, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x_scale) == 824, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, weight) == 832, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, groups) == 912, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, sizes_are_64_bits) == 916, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, activation) == 920, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, alpha) == 924, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, limit) == 928, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x_block_scale) == 936, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, x_block_stride) == 944, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, group_sizes) == 952, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, band) == 960, "");
static_assert(BS_OFFSET_OF(BlockScaledArguments, end) == 964, "");

}  // namespace bs::gemm
