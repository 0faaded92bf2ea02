// Warps that decode weights into TMEM, where products find them: eight warps, 16 rows of w each.
//
// Codes in fragments (layouts/fragments.py) are decoded to the A operand of mma.m16n8k16, which tcgen05.st.16x128b places
// as tcgen05.mma reads it: a lane for a row of w, a column for two k. Warps w and w + 4 have the two halves of the 32 lanes
// that both reach: rows 16 w and 64 + 16 w of the CTA, or, of gate and up, rows 16 w of each.
//
// Order. Codes leave their slot when they are in registers. A set of columns is written when the products that read it
// last are done; `decoded` of the set completes when all warps have stored, those of both CTAs of a pair at the even one,
// whose issuer waits there.
#pragma once
#include "gemm/mixed_ring.cuh"
#include "gemm/tmem_gemm.cuh"
#include "gemm/warp_weights.cuh"

namespace bs::gemm {

// mbarriers, one for each set.
template <class Shape>
struct DecodedSets {
    static constexpr int BARRIERS = Shape::SETS;

    u32 barriers;
    u32 tmem;

    BS_DEVICE u32 decoded(int set) const { return barriers + 8 * set; }
    BS_DEVICE u32 columns(int set) const { return tmem + Shape::SET_COLUMN + set * Shape::SET_COLUMNS; }

    BS_DEVICE void initialise() const {
        for (int i = 0; i < Shape::SETS; i++) ptx::mbarrier_init(decoded(i), Shape::N_WARPS * Shape::CTAS);
    }

    // By one lane of each warp, after the warp's stores have completed and it has fenced.
    BS_DEVICE void arrive(int set) const {
        if constexpr (Shape::CTAS == 1)
            ptx::mbarrier_arrive(decoded(set));
        else
            ptx::mbarrier_arrive_at(decoded(set), 0);
    }
};

// The ring as a warp that decodes sees it.
template <class Shape>
struct DecodingWarp : MixedRing<Shape> {
    using Ring = MixedRing<Shape>;
    static constexpr int k_warp = 0, SCALE_RUNS = 0;  // every warp decodes by itself

    int lane, quarter, half, n_warp;  // n_warp: which tile of 16 rows of w

    BS_DEVICE DecodingWarp(const Ring& ring) : Ring(ring), lane(threadIdx.x % 32), quarter(threadIdx.x / 32 % 4) {
        half = threadIdx.x / 32 - Shape::DECODING < 4 ? 0 : 1;
        n_warp = 4 * half + quarter;
    }

    BS_DEVICE u32 codes_at(u32 stage, int) const { return Ring::codes_in(stage) + n_warp * Shape::CODE_BYTES; }
    BS_DEVICE u32 scales_at(u32 stage, int) const { return Ring::scales_in(stage) + n_warp * Shape::SCALE_BYTES; }
    BS_DEVICE u32 lanes() const { return ptx::tcgen05::lane_bits(32 * quarter + 16 * half); }
};

template <class Shape>
struct MixedDecode : WarpWeights<Shape, DecodingWarp<Shape>> {
    using Weights = WarpWeights<Shape, DecodingWarp<Shape>>;
    using Weights::Weights, Weights::lane, Weights::BITS, Weights::UNITS_PER_GROUP;

    RingTurn<Shape::STAGES> turn;
    SetTurn<Shape, Shape::SETS> sets;
    bool lift = false;  // see gemm/lift.cuh

    BS_DEVICE void run_stage(const DecodedSets<Shape>& to, int unit) {
        const u32 stage = this->slot_at(turn.slot);
        ptx::mbarrier_wait(this->coded(turn.slot), turn.parity);
        if (unit == 0) this->with_scales(stage, [&](auto lifted) { lift = lifted.VALUE; });  // of the whole group
        u32 words[BITS], scales[4][2], w[4][4];
        this->load_codes(words, this->codes_at(stage, 0));
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(this->empty(turn.slot));
        this->load_decoded(scales, 0, unit);
        this->scaled_steps(w, words, 0, 0, scales, lift);
        u32 d[16];
#pragma unroll
        for (int i = 0; i < 16; i++) d[i] = w[i / 4][i % 4];
        ptx::tcgen05::fence_after_thread_sync();  // of a set for each slot, `coded` has waited for the products
        sets.wait(*this);
        ptx::tcgen05::st_16x128b(to.columns(sets.set) + this->lanes(), d);
        ptx::tcgen05::wait_st();
        ptx::tcgen05::fence_before_thread_sync();
        __syncwarp();
        if (lane == 0) to.arrive(sets.set);
        turn.step_on();
        sets.step_on();
    }

    // All tiles of this CTA.
    BS_DEVICE void run(const DecodedSets<Shape>& to, int k, int tiles) {
        const int stages = (k + Shape::TILE_K - 1) / Shape::TILE_K;
        for (int index = blockIdx.x; index < tiles; index += gridDim.x)
#pragma unroll 1
            for (int stage = 0; stage < stages; stage++) run_stage(to, stage % UNITS_PER_GROUP);
    }
};

}  // namespace bs::gemm
