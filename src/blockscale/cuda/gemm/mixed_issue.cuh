// The warp that multiplies: one thread issues the products of weights in TMEM and rows of x in shared memory.
#pragma once
#include "gemm/mixed_decode.cuh"
#include "ptx/tcgen05_descriptors.cuh"

namespace bs::gemm {

template <class Shape>
struct MixedIssue {
    static constexpr u32 INSTRUCTION =
        ptx::tcgen05::instruction_f16(Shape::X::is_bfloat16, 128 * Shape::CTAS, Shape::MMA_N);

    const MixedRing<Shape>& ring;
    const DecodedSets<Shape>& sets;
    RingTurn<Shape::STAGES> turn;
    RingTurn<Shape::SETS> set;

    BS_DEVICE MixedIssue(const MixedRing<Shape>& ring, const DecodedSets<Shape>& sets) : ring(ring), sets(sets) {}

    BS_DEVICE void issue_stage(const StageSums& sums, int mmas) {
        ptx::mbarrier_wait(ring.full(turn.slot), turn.parity);
        ptx::mbarrier_wait(sets.decoded(set.slot), set.parity);
        ptx::tcgen05::fence_after_thread_sync();
        const u32 weights = sets.columns(set.slot);
        const u64 x = ptx::tcgen05::swizzled_rows(ring.slot_at(turn.slot));
#pragma unroll
        for (int i = 0; i < Shape::MMAS; i++)
            if (i == 0 || i < mmas)
                ptx::tcgen05::mma_f16<Shape::CTAS>(sums.columns, weights + i * Shape::MMA_COLUMNS,
                                                   x + i * ptx::tcgen05::NEXT_32_BYTES, INSTRUCTION,
                                                   sums.accumulate || i > 0);
        commit<Shape>(ring.empty(turn.slot));
        turn.step_on();
        set.step_on();
    }

    // All tiles of this CTA or pair, by one thread.
    BS_DEVICE void run(const Accumulators<Shape>& accumulators, int k, int tiles) {
        issue_tiles(accumulators, k, tiles, [&](const StageSums& sums, int mmas) { issue_stage(sums, mmas); });
    }
};

}  // namespace bs::gemm
