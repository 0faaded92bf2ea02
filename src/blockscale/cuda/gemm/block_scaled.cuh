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
#include "ptx/cluster.cuh"
#include "ptx/elect.cuh"
#include "ptx/pdl.cuh"

namespace bs::gemm {

// All threads of the CTA, or of the pair.
template <class Shape>
BS_DEVICE void sync_ctas() {
    if constexpr (Shape::CTAS == 1)
        __syncthreads();
    else
        ptx::cluster_sync();
}

// Barriers are initialised and TMEM is allocated, by warps of their own; all threads see both afterwards.
template <class Shape>
BS_DEVICE void begin(const BlockScaledRing<Shape>& ring, Accumulators<Shape>& accumulators, u32* tmem) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        ring.initialise();
        accumulators.initialise();
        ptx::mbarrier_init_fence();
    }
    sync_ctas<Shape>();  // the peer runs, which an allocation for both needs
    if (warp == 1) {
        ptx::tcgen05::alloc<Shape::CTAS>(ptx::shared_address(tmem), ptx::tcgen05::COLUMNS);
        ptx::tcgen05::relinquish_alloc_permit<Shape::CTAS>();
        ptx::tcgen05::fence_before_thread_sync();
    }
    sync_ctas<Shape>();  // TMEM of both CTAs is there before the even one multiplies into it
    ptx::tcgen05::fence_after_thread_sync();
    accumulators.tmem = *tmem;
}

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
    begin<Shape>(ring, accumulators, &tmem);
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
    __syncwarp();
    ptx::tcgen05::fence_before_thread_sync();
    sync_ctas<Shape>();  // all has been read, and nobody arrives at a CTA that has gone
    ptx::tcgen05::fence_after_thread_sync();
    if (warp == 1) ptx::tcgen05::dealloc<Shape::CTAS>(accumulators.tmem, ptx::tcgen05::COLUMNS);
}

}  // namespace bs::gemm
