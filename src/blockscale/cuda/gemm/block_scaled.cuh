// A GEMM of two block-scaled operands by tcgen05 (sm_100, sm_103):
//
//     out[m, n] = sum over k of x[m, k] * x_scale[m, k / block] * w[n, k] * w_scale[n, k / block]
//
// Operands. TMA brings panels of x and w to shared memory, whence the tensor cores read them, and blocked scales, which go
// on to TMEM. Nothing is decoded: x is the A operand, w the B operand, so that a lane of TMEM is a row of x and a column a
// row of w.
//
// Work. A CTA has one warp that loads, one that multiplies and four that store. CTAs, or pairs of them, are persistent
// and take output tiles in turn. While four warps store a tile, the products of the next one run into another accumulator.
// Of a pair, each CTA holds 128 rows of x and half the rows of w; the even one issues all products.
#pragma once
#include "gemm/block_scaled_epilogue.cuh"
#include "gemm/block_scaled_issue.cuh"
#include "gemm/block_scaled_ring.cuh"
#include "gemm/clear_rows.cuh"
#include "ptx/elect.cuh"
#include "ptx/pdl.cuh"

namespace bs::gemm {

template <class Shape>
BS_DEVICE void block_scaled(const typename Shape::Arguments& a) {
    using Ring = BlockScaledRing<Shape>;
    __shared__ u64 barriers[Ring::BARRIERS + Accumulators<Shape>::BARRIERS];
    __shared__ u32 tmem;
    __shared__ float bias[Shape::MMA_N];
    u8* memory = ptx::dynamic_shared();
    memory += -ptx::shared_address(memory) & 1023;  // where panels with TMA's 128-byte swizzle may start
    int* starts = reinterpret_cast<int*>(memory + Shape::STAGES * Shape::STAGE_BYTES);
    const int rank = Shape::CTAS == 2 ? blockIdx.y : 0, warp = threadIdx.x / 32;
    const Ring ring{ptx::shared_address(memory), ptx::shared_address(barriers)};
    Accumulators<Shape> accumulators{ptx::shared_address(barriers) + 8 * Ring::BARRIERS, 0};
    accumulators.tmem = begin_tmem<Shape>(&tmem, ring, accumulators);
    ptx::trigger_dependents();
    ptx::wait_for_prerequisites();
    if constexpr (Shape::RAGGED) {
        find_starts<Shape, true>(a, starts);
        clear_rows_from<Shape>(a, starts[a.groups], blockIdx.x * Shape::CTAS + rank, gridDim.x * Shape::CTAS);
    }
    const WholeTileOrder<Shape> order(a, starts);
    if (warp == 0) {
        if (ptx::elect_one()) ring.produce(a, order, rank);
    } else if (warp == 1) {
        if (rank == 0 && ptx::elect_one()) BlockScaledIssue<Shape>(ring, accumulators).run(a, order.count());
    } else {
        BlockScaledEpilogue<Shape>(a, accumulators, bias).run(order, rank);
    }
    end_tmem<Shape>(accumulators.tmem);
}

}  // namespace bs::gemm
