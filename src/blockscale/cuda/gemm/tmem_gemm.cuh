// What GEMMs by tcgen05 have in common, wherever their operands come from: how a CTA or a pair of CTAs begins and ends,
// and the order of products, tile after tile.
#pragma once
#include "gemm/accumulators.cuh"
#include "ptx/cluster.cuh"

namespace bs::gemm {

// All threads of the CTA, or of the pair.
template <class Shape>
BS_DEVICE void sync_ctas() {
    if constexpr (Shape::CTAS == 1)
        __syncthreads();
    else
        ptx::cluster_sync();
}

// mbarriers are initialised and TMEM is allocated, by warps of their own; all threads see both afterwards. Returns the
// address of TMEM.
template <class Shape, class... Barriers>
BS_DEVICE u32 begin_tmem(u32* tmem, const Barriers&... barriers) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        (barriers.initialise(), ...);
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
    return *tmem;
}

template <class Shape>
BS_DEVICE void end_tmem(u32 tmem) {
    __syncwarp();
    ptx::tcgen05::fence_before_thread_sync();
    sync_ctas<Shape>();  // all has been read, and nobody arrives at a CTA that has gone
    ptx::tcgen05::fence_after_thread_sync();
    if (threadIdx.x / 32 == 1) ptx::tcgen05::dealloc<Shape::CTAS>(tmem, ptx::tcgen05::COLUMNS);
}

// Arrives at the mbarrier when all products so far are done, in both CTAs of a pair.
template <class Shape>
BS_DEVICE void commit(u32 barrier) {
    if constexpr (Shape::CTAS == 1)
        ptx::tcgen05::commit<1>(barrier);
    else
        ptx::tcgen05::commit_multicast<2>(barrier, 3);
}

// Which of SETS sets of TMEM columns a stage uses, for what its products read there beside shared memory. Before a set is
// written again, the products that read it are waited for: at `empty` of the slot that they read too. With a set for each
// slot, whoever waited for the slot's bytes has waited for that.
template <class Shape, int SETS>
struct SetTurn {
    int set = 0;
    int left = SETS;                // sets that no product has read yet
    RingTurn<Shape::STAGES> behind;  // SETS stages behind, once so many have passed

    template <class Ring>
    BS_DEVICE void wait(const Ring& ring) {
        if constexpr (SETS < Shape::STAGES) {
            if (left > 0) {
                left--;
                return;
            }
            ptx::mbarrier_wait(ring.empty(behind.slot), behind.parity);
            ptx::tcgen05::fence_after_thread_sync();
            behind.step_on();
        }
    }

    BS_DEVICE void step_on() {
        if (++set == SETS) set = 0;
    }
};

// The sums of a stage's products.
struct StageSums {
    u32 columns;        // of the accumulator
    bool accumulate;    // else they are overwritten
    u32 second_parity;  // of Accumulators::second
};

// All tiles of this CTA or pair, by one thread. `stage(sums, mmas)` waits for the operands of a stage and issues its
// products, of which `mmas` instructions have k that exists.
template <class Shape, class Stage>
BS_DEVICE void issue_tiles(const Accumulators<Shape>& accumulators, int k, int tiles, const Stage& stage) {
    const int all = (k + Shape::MMA_K - 1) / Shape::MMA_K;  // instructions of a tile
    AccumulatorTurn<Shape> into;
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        ptx::mbarrier_wait(accumulators.own(into.slot), into.parity ^ 1);  // the first time at once
        if constexpr (Accumulators<Shape>::SHARES) ptx::mbarrier_wait(accumulators.shared(), into.tile_parity ^ 1);
        ptx::tcgen05::fence_after_thread_sync();
#pragma unroll 1
        for (int done = 0; done < all; done += Shape::MMAS)
            stage(StageSums{accumulators.columns(into.slot), done > 0, into.tile_parity ^ 1}, all - done);
        commit<Shape>(accumulators.full(into.slot));
        into.step_on();
    }
}

}  // namespace bs::gemm
