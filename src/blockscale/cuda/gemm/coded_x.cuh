// Quantised x, decoded by warps beside the one that brings the operands of a tiled GEMM.
//
// TMA copies codes and block scales of x as they lie in memory; `raw` of a slot completes when they have come. Three warps
// then decode them to bfloat16 and store the panel that wgmma reads, as TMA would have left it. `full` of the slot
// completes when the weights have come and all three warps have stored. The warp that issues copies does not decode: where
// four warps did both, a stage took 1,500 cycles of an H200 more.
//
// Codes lie at the end of the panel that they are decoded to. Rows are decoded from the first to the last, so a row covers
// codes of rows up to itself alone; all warps have read the codes of some rows before any of them stores these.
#pragma once
#include "decode/rows.cuh"
#include "gemm/stage_ring.cuh"

namespace bs::gemm {

template <class Shape>
struct CodedX : StageRing<Shape> {
    using Ring = StageRing<Shape>;
    using Ring::full, Ring::raw, Ring::raw_in, Ring::raw_scales_in, Ring::slot, Ring::parity;
    using X = typename Shape::X;
    using Format = typename Shape::XFormat;
    using Decoder = decode::RowDecoder<X, Format::ELEMENT, Format::BITS>;
    using Lift = gemm::Lift<X, Format, true>;

    // A lane takes 16 values of a row at a time: of one block. A warp takes every third unit of eight rows.
    static constexpr int VALUES = 16, LANES = 64 / VALUES, ROWS = 32 / LANES, UNITS = Shape::TILE_M / ROWS;
    static constexpr int WARPS = Shape::X_WARPS, TURNS = (UNITS + WARPS - 1) / WARPS;
    static constexpr int WORDS = VALUES * Format::BITS / 32;
    static constexpr int BATCH = 4;    // units of a warp whose scales are decoded together
    static constexpr int BARRIER = 4;  // of these warps; warpgroups that multiply have those before
    static_assert(Format::BLOCK % VALUES == 0, "a lane has one scale of a row");

    int warp, lane;

    BS_DEVICE CodedX(const Ring& ring) : Ring(ring), warp(threadIdx.x / 32 % 4 - 1), lane(threadIdx.x % 32) {}

    // Scale `byte` of four words, as pairs; those of E2M1 make up for what its bits lack, where there is room.
    static constexpr bool LIFTS_SCALES = Lift::UNLIFTED && !Lift::MAY_EXCEED;
    static BS_DEVICE void decode_scales(u32 (&pairs)[BATCH], const u32 (&words)[BATCH][1], int byte) {
        const u32 select = 0x40 + 0x11 * byte;
        const u32 low = ptx::prmt(words[0][0], words[1][0], select), high = ptx::prmt(words[2][0], words[3][0], select);
        float s[BATCH];
        decode::ScaleDecoder<Format::SCALE>::four(s, ptx::prmt(low, high, 0x5410));
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float scale = LIFTS_SCALES ? s[i] * Lift::SCALE_LIFT : s[i];
            pairs[i] = X::from_floats(scale, scale);
        }
    }

    static BS_DEVICE u32 scaled(u32 pair, u32 scale) {
        if constexpr (!LIFTS_SCALES && Decoder::LIFT != 0) pair = X::times(pair, X::power_of_two(Decoder::LIFT));
        return X::times(pair, scale);
    }

    // Whether the warp has a unit in this turn.
    BS_DEVICE bool has(int turn) const { return WARPS * (turn + 1) <= UNITS || WARPS * turn + warp < UNITS; }

    // Units of this warp, from the FIRST-th on: all loads come first. Eight lanes that store at a time reach all banks.
    template <int FIRST>
    BS_DEVICE void decode_batch(u32 codes, u32 scales, int byte, u32 to) const {
        constexpr int COUNT = TURNS - FIRST < BATCH ? TURNS - FIRST : BATCH, BELOW = ROWS * WARPS;  // rows of a turn
        u32 words[COUNT][WORDS], scale_words[BATCH][1] = {}, pairs[BATCH];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (!has(FIRST + i)) break;
            ptx::load_shared(scale_words[i], scales + 16 * BELOW * (FIRST + i));
            ptx::load_shared(words[i], codes + Ring::RAW_ROW * BELOW * (FIRST + i));
        }
        decode_scales(pairs, scale_words, byte);
        ptx::bar_sync(BARRIER, 32 * WARPS);  // all codes that these rows will cover have been read
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (!has(FIRST + i)) break;
            u32 d[VALUES / 2];
#pragma unroll
            for (int j = 0; j < VALUES / 2; j++) d[j] = scaled(Decoder::pair(words[i], j), pairs[i]);
            const u32 below = 128 * BELOW * (FIRST + i);
            ptx::store_shared(to + below, d[0], d[1], d[2], d[3]);
            ptx::store_shared((to ^ 16) + below, d[4], d[5], d[6], d[7]);
        }
        if constexpr (FIRST + BATCH < TURNS) decode_batch<FIRST + BATCH>(codes, scales, byte, to);
    }

    BS_DEVICE void decode(u32 stage, int k_tile) const {
        const int part = lane % LANES, row = ROWS * warp + lane / LANES;
        const int scale = (64 * k_tile + VALUES * part) / Format::BLOCK % 16;
        const u32 codes = raw_in(stage) + Ring::RAW_ROW * row + 4 * WORDS * part;
        const u32 scales = raw_scales_in(stage) + 16 * row + scale / 4 * 4;
        decode_batch<0>(codes, scales, scale % 4, stage + 128 * row + 16 * (2 * part ^ row % 8));
    }

    // Everything that this CTA multiplies.
    BS_DEVICE void run(const TileOrder<Shape>& order) {
        Work<Shape> work(order);
        for (Segment segment; work.take(segment);)
#pragma unroll 1
            for (int k_tile = segment.first * Shape::TURN; k_tile < segment.end * Shape::TURN; k_tile++) {
                ptx::mbarrier_wait(raw(slot), parity);
                decode(this->stage_of(slot), k_tile);
                ptx::tma::fence_after_stores();
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(full(slot));
                this->step_on();
            }
    }
};

}  // namespace bs::gemm
