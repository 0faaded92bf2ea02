// Quantised x, decoded by the warpgroup that brings the operands of a tiled GEMM.
//
// TMA copies codes and block scales of x as they lie in memory; `raw` of a slot completes when they have come. Four warps
// then decode them to bfloat16 and store the panel that wgmma reads, as TMA would have left it. `full` of the slot
// completes when the weights have come and all four warps have stored.
//
// Order. Of the four copies of a stage each warp issues one, since issuing takes time. A warp loads whatever finds an
// empty slot before it decodes the next stage, and waits for a slot only if nothing is left to decode. Slots are empty
// for codes as they are for the panel: warps that multiply release them after the codes have been read.
#pragma once
#include "decode/rows.cuh"
#include "gemm/ring_turn.cuh"
#include "gemm/stage_ring.cuh"
#include "ptx/elect.cuh"

namespace bs::gemm {

// The stages of this CTA, one after the other.
template <class Shape>
struct StageCursor {
    const TileOrder<Shape>& order;
    Work<Shape> work;
    RingTurn<Shape::STAGES> turn;
    Segment segment{};
    OutputTile tile{};
    int k_tile = 0;
    bool more = false;

    BS_DEVICE StageCursor(const TileOrder<Shape>& order) : order(order), work(order) { take(); }

    BS_DEVICE void take() {
        do more = work.take(segment);
        while (more && segment.first == segment.end);
        if (!more) return;
        tile = order.at(segment.tile, 0);
        k_tile = segment.first * Shape::TURN;
    }

    BS_DEVICE void step_on() {
        turn.step_on();
        if (++k_tile == segment.end * Shape::TURN) take();
    }
};

template <class Shape>
struct CodedX : StageRing<Shape> {
    using Ring = StageRing<Shape>;
    using Ring::empty, Ring::full, Ring::raw, Ring::stage_of, Ring::BRANCHES, Ring::BRANCH_TILES;
    using Arguments = typename Shape::Arguments;
    using X = typename Shape::X;
    using Format = typename Shape::XFormat;
    using Decoder = decode::RowDecoder<X, Format::ELEMENT, Format::BITS>;
    using Lift = gemm::Lift<X, Format, true>;

    // A lane takes 16 values of a row at a time: of one block.
    static constexpr int VALUES = 16, LANES = 64 / VALUES, ROWS = 128 / LANES, TURNS = Shape::TILE_M / ROWS;
    static constexpr int WORDS = VALUES * Format::BITS / 32, ROW_BYTES = 8 * Format::BITS;  // codes of a lane, of a row
    static constexpr int BATCH = 4;  // rows of a lane whose scales are decoded together
    static_assert(Format::BLOCK % VALUES == 0, "a lane has one scale of a row");

    BS_DEVICE CodedX(const Ring& ring) : Ring(ring) {}

    static BS_DEVICE int thread() { return threadIdx.x - Shape::CONSUMERS; }

    // Where x is in its stage: codes, then 16 bytes of scales of each row.
    static BS_DEVICE u32 raw_in(u32 stage) { return Ring::scales_in(stage) + Shape::CTA_TILES * Shape::SCALE_BYTES; }
    static BS_DEVICE u32 raw_scales_in(u32 stage) { return raw_in(stage) + Shape::TILE_M * ROW_BYTES; }

    // A warp's share, by one lane. What is beyond k, the last tile of w or the last row of x becomes zero.
    BS_DEVICE void load(const Arguments& a, const StageCursor<Shape>& at) const {
        const int slot = at.turn.slot, k_tile = at.k_tile, first_scale = 64 * k_tile / Format::BLOCK;
        const int first = Ring::first_tile(a, at.tile);
        const u32 stage = stage_of(slot);
        switch (thread() / 32) {
            case 0:
                ptx::mbarrier_arrive_expect_tx(full(slot), Shape::CTA_TILES * (Shape::CODE_BYTES + Shape::SCALE_BYTES));
#pragma unroll
                for (int i = 0; i < BRANCHES; i++) Ring::load_codes(a, first, k_tile, i, full(slot), stage);
                break;
            case 1:
#pragma unroll
                for (int i = 0; i < BRANCHES; i++) Ring::load_scales(a, first, k_tile, i, full(slot), stage);
                break;
            case 2:
                ptx::mbarrier_arrive_expect_tx(raw(slot), Shape::TILE_M * (ROW_BYTES + 16));
                ptx::tma::load(raw_in(stage), a.x_map, ROW_BYTES * k_tile, at.tile.row, raw(slot));
                break;
            default:
                ptx::tma::load(raw_scales_in(stage), a.x_scale_map, first_scale / 16 * 16, at.tile.row, raw(slot));
        }
    }

    // By one lane: whatever finds a slot; of `ahead` stages that are loaded and not decoded at least one.
    BS_DEVICE void load_ahead(const Arguments& a, StageCursor<Shape>& loads, int& ahead) const {
        while (loads.more) {
            const u32 barrier = empty(loads.turn.slot), parity = loads.turn.parity ^ 1;  // the first time at once
            if (ahead == 0)
                ptx::mbarrier_wait(barrier, parity);
            else if (!ptx::mbarrier_test(barrier, parity))
                break;
            load(a, loads);
            loads.step_on();
            ahead++;
        }
    }

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

    // Rows of this lane, from the FIRST-th on: all loads come first. Eight lanes that store at a time reach all banks.
    template <int FIRST>
    static BS_DEVICE void decode_batch(u32 codes, u32 scales, int byte, u32 to) {
        constexpr int COUNT = TURNS - FIRST < BATCH ? TURNS - FIRST : BATCH;
        u32 words[COUNT][WORDS], scale_words[BATCH][1] = {}, pairs[BATCH];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            ptx::load_shared(scale_words[i], scales + 16 * ROWS * (FIRST + i));
            ptx::load_shared(words[i], codes + ROW_BYTES * ROWS * (FIRST + i));
        }
        decode_scales(pairs, scale_words, byte);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 d[VALUES / 2];
#pragma unroll
            for (int j = 0; j < VALUES / 2; j++) d[j] = scaled(Decoder::pair(words[i], j), pairs[i]);
            constexpr int BELOW = 128 * ROWS;
            ptx::store_shared(to + BELOW * (FIRST + i), d[0], d[1], d[2], d[3]);
            ptx::store_shared((to ^ 16) + BELOW * (FIRST + i), d[4], d[5], d[6], d[7]);
        }
        if constexpr (FIRST + BATCH < TURNS) decode_batch<FIRST + BATCH>(codes, scales, byte, to);
    }

    static BS_DEVICE void decode(u32 stage, int k_tile) {
        const int part = thread() % LANES, row = thread() / LANES;
        const int scale = (64 * k_tile + VALUES * part) / Format::BLOCK % 16;
        const u32 codes = raw_in(stage) + 4 * WORDS * thread(), scales = raw_scales_in(stage) + 16 * row + scale / 4 * 4;
        decode_batch<0>(codes, scales, scale % 4, stage + 128 * row + 16 * (2 * part ^ row % 8));
    }

    // By all warps: everything that this CTA multiplies.
    BS_DEVICE void produce(const Arguments& a, const TileOrder<Shape>& order) {
        const bool loads_weights = thread() < 64;
        if (!(loads_weights && a.weights_unchanged)) ptx::wait_for_prerequisites();
        StageCursor<Shape> loads(order);
        Work<Shape> work(order);
        RingTurn<Shape::STAGES> turn;
        int ahead = 0;
        for (Segment segment; work.take(segment);)
#pragma unroll 1
            for (int k_tile = segment.first * Shape::TURN; k_tile < segment.end * Shape::TURN; k_tile++) {
                if (ptx::elect_one()) load_ahead(a, loads, ahead);
                __syncwarp();
                ptx::mbarrier_wait(raw(turn.slot), turn.parity);
                decode(stage_of(turn.slot), k_tile);
                ptx::tma::fence_after_stores();
                __syncwarp();
                if (ptx::elect_one()) ptx::mbarrier_arrive(full(turn.slot)), ahead--;
                turn.step_on();
            }
    }
};

}  // namespace bs::gemm
