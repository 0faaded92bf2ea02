// The warp that multiplies: one thread copies scales from shared memory to TMEM and issues the products of a stage.
//
// Scales. The atom of 512 bytes that files and TMA hold is what tcgen05.cp.32x128b.warpx4 spreads over TMEM: row r of a
// scale group in lane r % 32 of each quarter, column r / 32, a byte for each of four scales. Rows of w beyond 128 follow
// in the next four columns. An instruction names the columns of its scale group and the first byte it takes.
//
// Order. A thread's cp comes before its mma by itself. That a later cp does not overtake an mma which still reads the same
// columns is promised nowhere: so stages use SCALE_SETS sets of columns in turn.
#pragma once
#include "gemm/block_scaled_ring.cuh"
#include "gemm/block_scaled_shape.cuh"
#include "gemm/tmem_gemm.cuh"

namespace bs::gemm {

template <class Shape>
struct BlockScaledIssue {
    static constexpr int CTAS = Shape::CTAS;

    const BlockScaledRing<Shape>& ring;
    const Accumulators<Shape>& accumulators;
    RingTurn<Shape::STAGES> turn;
    SetTurn<Shape, Shape::SCALE_SETS> sets;

    BS_DEVICE BlockScaledIssue(const BlockScaledRing<Shape>& ring, const Accumulators<Shape>& accumulators)
        : ring(ring), accumulators(accumulators) {}

    BS_DEVICE void copy_scales(u32 x_scales, u32 w_scales) const {
        const u64 x_from = ptx::tcgen05::scale_rows(ring.x_scale_at(turn.slot));
        const u64 w_from = ptx::tcgen05::scale_rows(ring.w_scale_at(turn.slot));
        constexpr u32 ATOM = ptx::tcgen05::units(512);
#pragma unroll
        for (int group = 0; group < Shape::SCALE_GROUPS; group++) {
            ptx::tcgen05::cp_32x128b_warpx4<CTAS>(x_scales + 4 * group, x_from + group * ATOM);
#pragma unroll
            for (int atom = 0; atom < Shape::B_ATOMS; atom++)
                ptx::tcgen05::cp_32x128b_warpx4<CTAS>(w_scales + 4 * (group * Shape::B_ATOMS + atom),
                                                      w_from + (atom * Shape::SCALE_GROUPS + group) * ATOM);
        }
    }

    // Columns of TMEM.
    struct Places {
        u32 sums, x_scales, w_scales;
    };

    // Instruction i of a stage, by N rows of w from row FROM on.
    template <int N, int FROM, ptx::tcgen05::Keep KEEP>
    BS_DEVICE void multiply(const Places& at, int i, bool accumulate) const {
        constexpr u32 INSTRUCTION =
            ptx::tcgen05::instruction<Shape::KIND>(Shape::X_TYPE, Shape::W_TYPE, Shape::TILE_M, N);
        constexpr u32 X_PANEL = ptx::tcgen05::units(Shape::CTA_ROWS * 128);
        constexpr u32 W_PANEL = ptx::tcgen05::units(Shape::CTA_B_ROWS * 128);
        const u64 x = ptx::tcgen05::swizzled_rows(ring.x_at(turn.slot));
        const u64 w = ptx::tcgen05::swizzled_rows(ring.w_at(turn.slot) + FROM / CTAS * 128);
        const int scale = i * Shape::SCALES_PER_MMA, group = scale / 4;
        const u32 step = i % 4 * ptx::tcgen05::NEXT_32_BYTES;
        ptx::tcgen05::mma_block_scale<CTAS, Shape::KIND, KEEP>(
            at.sums + FROM, x + i / 4 * X_PANEL + step, w + i / 4 * W_PANEL + step,
            INSTRUCTION + ptx::tcgen05::scale_byte(scale % 4), at.x_scales + 4 * group,
            at.w_scales + 4 * (Shape::B_ATOMS * group + FROM / 128), accumulate || i > 0);
    }

    template <int N, int FROM>
    BS_DEVICE void multiply_part(const Places& at, int mmas, bool accumulate) const {
#pragma unroll
        for (int i = 0; i < Shape::MMAS; i++)
            if (i == 0 || i < mmas) multiply<N, FROM, ptx::tcgen05::Keep::NO>(at, i, accumulate);
    }

    // Both parts of w, one behind the other along k, so that x may stay in the tensor cores.
    BS_DEVICE void multiply_both(const Places& at, int mmas) const {
        using ptx::tcgen05::Keep;
#pragma unroll
        for (int i = 0; i < Shape::MMAS; i++)
            if (i == 0 || i < mmas) {
                multiply<Shape::FIRST_N, 0, Keep::FILL>(at, i, true);
                multiply<Shape::SECOND_N, Shape::FIRST_N, Keep::LAST_USE>(at, i, true);
            }
    }

    // One stage, of which `mmas` instructions have k that exists. A tile's first products of w's second part wait until
    // the last tile's sums have been read there, and those of the first part run meanwhile.
    BS_DEVICE void issue_stage(const StageSums& sums, int mmas) {
        ptx::mbarrier_wait(ring.full(turn.slot), turn.parity);
        ptx::tcgen05::fence_after_thread_sync();
        sets.wait(ring);
        const u32 x_scales = accumulators.tmem + Shape::SCALE_COLUMN + sets.set * Shape::SET_COLUMNS;
        const u32 w_scales = x_scales + Shape::X_SCALE_COLUMNS;
        copy_scales(x_scales, w_scales);
        const Places at{sums.columns, x_scales, w_scales};
        if constexpr (Shape::SECOND_N == 0) {
            multiply_part<Shape::FIRST_N, 0>(at, mmas, sums.accumulate);
        } else if (sums.accumulate) {
            multiply_both(at, mmas);
        } else {
            multiply_part<Shape::FIRST_N, 0>(at, mmas, false);
            ptx::mbarrier_wait(accumulators.second(), sums.second_parity);
            ptx::tcgen05::fence_after_thread_sync();
            multiply_part<Shape::SECOND_N, Shape::FIRST_N>(at, mmas, false);
        }
        commit<Shape>(ring.empty(turn.slot));
        turn.step_on();
        sets.step_on();
    }

    // All tiles of this CTA or pair, by one thread.
    BS_DEVICE void run(const typename Shape::Arguments& a, int tiles) {
        issue_tiles(accumulators, a.k, tiles, [&](const StageSums& sums, int mmas) { issue_stage(sums, mmas); });
    }
};

}  // namespace bs::gemm
