// Written by `python -m blockscale.kernels.cuda.headers` from blockscale/kernels/matmul/fragments/arguments.py.
#pragma once
#include "base.cuh"

namespace bs::gemm {

struct Weight {
    const u8* codes;
    const u8* scale;
    const float* tensor_scale;  // one per group, or null
    const float* table;  // of a codebook
    const void* bias;  // [groups, n], or null
};
static_assert(sizeof(Weight) == 40, "as ctypes has it");
static_assert(BS_OFFSET_OF(Weight, codes) == 0, "");
static_assert(BS_OFFSET_OF(Weight, scale) == 8, "");
static_assert(BS_OFFSET_OF(Weight, tensor_scale) == 16, "");
static_assert(BS_OFFSET_OF(Weight, table) == 24, "");
static_assert(BS_OFFSET_OF(Weight, bias) == 32, "");

}  // namespace bs::gemm

namespace bs::gemm {

// Most products read the first 104 bytes alone: two cache lines of 64 bytes.
struct Arguments {
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
};
static_assert(sizeof(Arguments) == 192, "as ctypes has it");
static_assert(BS_OFFSET_OF(Arguments, m) == 0, "");
static_assert(BS_OFFSET_OF(Arguments, n) == 4, "");
static_assert(BS_OFFSET_OF(Arguments, k) == 8, "");
static_assert(BS_OFFSET_OF(Arguments, weights_unchanged) == 12, "");
static_assert(BS_OFFSET_OF(Arguments, bias_dtype) == 16, "");
static_assert(BS_OFFSET_OF(Arguments, out_dtype) == 20, "");
static_assert(BS_OFFSET_OF(Arguments, out) == 24, "");
static_assert(BS_OFFSET_OF(Arguments, out_stride) == 32, "");
static_assert(BS_OFFSET_OF(Arguments, x) == 40, "");
static_assert(BS_OFFSET_OF(Arguments, x_stride) == 48, "");
static_assert(BS_OFFSET_OF(Arguments, x_scale) == 56, "");
static_assert(BS_OFFSET_OF(Arguments, weight) == 64, "");
static_assert(BS_OFFSET_OF(Arguments, groups) == 144, "");
static_assert(BS_OFFSET_OF(Arguments, sizes_are_64_bits) == 148, "");
static_assert(BS_OFFSET_OF(Arguments, activation) == 152, "");
static_assert(BS_OFFSET_OF(Arguments, alpha) == 156, "");
static_assert(BS_OFFSET_OF(Arguments, limit) == 160, "");
static_assert(BS_OFFSET_OF(Arguments, x_block_scale) == 168, "");
static_assert(BS_OFFSET_OF(Arguments, x_block_stride) == 176, "");
static_assert(BS_OFFSET_OF(Arguments, group_sizes) == 184, "");

}  // namespace bs::gemm

namespace bs::gemm {

// By which the device decides whether tiles of ragged groups are split: sm90_gemm/cost.py.
struct TileCycles {
    float tile;
    float split;  // of leaving sums of parts of tiles and adding them, once
    float sums;  // of adding one part's
};
static_assert(sizeof(TileCycles) == 12, "as ctypes has it");
static_assert(BS_OFFSET_OF(TileCycles, tile) == 0, "");
static_assert(BS_OFFSET_OF(TileCycles, split) == 4, "");
static_assert(BS_OFFSET_OF(TileCycles, sums) == 8, "");

}  // namespace bs::gemm

namespace bs::gemm {

// Of kernels for which TMA copies x and weights.
struct alignas(64) WgmmaArguments {
    TensorMap x_map;
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
    float* partial;  // sums of parts of tiles
    u32* arrivals;  // flags, zero between launches
    int band;  // tiles of x whose rows stay in the L2 cache
    TileCycles cycles;  // of ragged groups
    u8 end[32];
};
static_assert(sizeof(WgmmaArguments) == 896, "as ctypes has it");
static_assert(BS_OFFSET_OF(WgmmaArguments, x_map) == 0, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, code_map) == 128, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, scale_map) == 384, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, m) == 640, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, n) == 644, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, k) == 648, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, weights_unchanged) == 652, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, bias_dtype) == 656, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, out_dtype) == 660, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, out) == 664, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, out_stride) == 672, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, x) == 680, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, x_stride) == 688, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, x_scale) == 696, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, weight) == 704, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, groups) == 784, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, sizes_are_64_bits) == 788, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, activation) == 792, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, alpha) == 796, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, limit) == 800, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, x_block_scale) == 808, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, x_block_stride) == 816, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, group_sizes) == 824, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, partial) == 832, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, arrivals) == 840, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, band) == 848, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, cycles) == 852, "");
static_assert(BS_OFFSET_OF(WgmmaArguments, end) == 864, "");

}  // namespace bs::gemm
