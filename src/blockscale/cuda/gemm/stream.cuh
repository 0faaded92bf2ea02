// A GEMM for few rows of x that streams the weights: every weight is read once, decoded and multiplied on the way.
//
//     out[m, n] = sum over k of x[m, k] * w[n, k] * scale[n, k / block]
//
// Operands. Weights are A of the tensor cores and rows of x the columns of B, so an mma tile is 16 rows of w by 8 rows
// of x. Where weight times scale is exact in 16 bits and TILE_M is large, weights are scaled before they are
// multiplied; else the sum of each scale block is scaled in float32. With fewer than 8 rows of x, columns of B would be idle: they
// hold other blocks. With one row, column j has the part of x in block j and zeros elsewhere, so that one accumulator
// keeps the sums of eight blocks apart and each lane applies the scales of its own columns alone.
//
// Work. A CTA has N_WARPS x K_WARPS warps. Warps of the same n_warp share tiles of w and take every K_WARPS-th k tile;
// a ring of STAGES brings k tiles to shared memory. Their sums, and those of the CTAs that share an output (split-K),
// are added in a fixed order, so a result has the same bits every time.
#pragma once
#include "gemm/mma.cuh"
#include "gemm/mma_few.cuh"
#include "gemm/reduce.cuh"
#include "gemm/wgmma.cuh"

namespace bs::gemm {

template <class Shape>
using Mainloop = typename Either<
    Shape::WGMMA, WgmmaMainloop<Shape>,
    typename Either<Shape::TILE_M >= 8, MmaMainloop<Shape>, MmaFewMainloop<Shape>>::Type>::Type;

// The rows of x of one group, TILE_M at a time. `memory` begins behind the table.
template <class Shape>
BS_DEVICE void stream(const typename Shape::Arguments& a, u8* memory, const RowRange& rows) {
    typename Shape::Decoder decoders[Shape::BRANCHES];
    constexpr int ALIGNMENT = Shape::STAGE_ALIGNMENT;
    const u32 table = ptx::shared_address(memory) - Shape::TABLE_BYTES;
    const u32 stages = (ptx::shared_address(memory) + Shape::ZERO_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    Mainloop<Shape> mainloop(a, stages, decoders);
    const long long k_tiles = (a.k + Shape::TILE_K - 1) / Shape::TILE_K;
    const int first = static_cast<int>(k_tiles * blockIdx.y / Shape::SPLITS);
    const int end = static_cast<int>(k_tiles * (blockIdx.y + 1) / Shape::SPLITS);
    const auto load_tables = [&] {
#pragma unroll
        for (int i = 0; i < Shape::BRANCHES; i++) decode::load(decoders[i], a.weight[i].table, table, i, threadIdx.x, blockDim.x);
        if (Shape::DecoderOf::SHARED || Shape::WGMMA) __syncthreads();  // the ring's mbarriers are initialised then, too
    };
    if (!a.weights_unchanged) ptx::wait_for_prerequisites();
    ptx::trigger_dependents();
    fetch_tensor_scales<Shape>(a, rows.group);
    for (int m = 0; m < rows.end - rows.begin; m += Shape::TILE_M) {
        mainloop.run(rows, m, first, end, [&] {
            if (m == 0) load_tables();
        });
        ptx::cp_async_wait<0>();  // tensor scales have come
        __syncthreads();          // the stages are read no more: sums take their place
        float* left = reinterpret_cast<float*>(memory + Shape::ZERO_BYTES);
        mainloop.leave(left);
        __syncthreads();
        reduce_and_store<Shape>(a, left, rows, m, min(rows.end - rows.begin - m, Shape::TILE_M));
        mainloop.end_turn();
        __syncthreads();
    }
}

// Rows of x that belong to no group are zero in the output.
template <class Shape>
BS_DEVICE void clear_rows(const typename Shape::Arguments& a, int first) {
    for (int row = first + blockIdx.z; row < a.m; row += gridDim.z)
        for (int i = threadIdx.x; i < Shape::TILE_N; i += Shape::THREADS)
            if (blockIdx.x * Shape::TILE_N + i < a.n)
                store_number(a.out, row * a.out_stride + blockIdx.x * Shape::TILE_N + i, 0.0f, a.out_dtype);
}

}  // namespace bs::gemm
