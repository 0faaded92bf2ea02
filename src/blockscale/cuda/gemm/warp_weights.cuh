// Weights of a warp: codes and scales out of shared memory, decoded in registers.
#pragma once
#include "gemm/warp_coord.cuh"
#include "ptx/shared.cuh"

namespace bs::gemm {

template <class Shape, class Ring>
struct WarpWeights : Ring {
    using Ring::shared, Ring::lane, Ring::n_warp, Ring::k_warp;
    using X = typename Shape::X;
    using Format = typename Shape::Format;
    using Decoder = typename Shape::Decoder;
    using Lift = typename Shape::Lift;

    static constexpr int TILES = Shape::TILES_PER_WARP, BITS = Format::BITS, BLOCK = Format::BLOCK;
    static constexpr int GROUPS = Shape::SCALE_GROUPS, UNITS_PER_GROUP = Format::UNITS_PER_GROUP;
    static constexpr int SCALED_UNITS = UNITS_PER_GROUP;  // whose scales are decoded together

    const Decoder* decoders;  // of the branches that the warp has, whose tables may differ

    BS_DEVICE WarpWeights(const typename Shape::Arguments& a, u32 shared, const Decoder* decoders)
        : Ring(a, shared), decoders(decoders) {}
    BS_DEVICE WarpWeights(const Ring& ring, const Decoder* decoders) : Ring(ring), decoders(decoders) {}

    BS_DEVICE const Decoder& decoder(int tile) const {
        return decoders[Format::ELEMENT == decode::TABLE ? tile % Shape::WARP_BRANCHES : 0];
    }

    // Units of 64 k are counted from the first unit of the scale group in which a k tile begins.
    static BS_DEVICE int unit_of(int k_tile, int part) { return k_tile * Shape::UNITS % UNITS_PER_GROUP + part; }

    // To scale weights, four lanes need the scales of the same rows, each twice in a register: every lane decodes a
    // quarter of them for all. For two blocks, 16 bytes hold rows g and g + 8 of the even one, then of the odd one.
    BS_DEVICE u32 decoded() const {
        return shared + Shape::STAGES * Shape::STAGE_BYTES +
               (n_warp * Shape::K_WARPS + k_warp) * Shape::DECODED_BYTES;
    }

    // Decodes the scales of a stage for `units(Lifted)`, which multiplies what they belong to: see gemm/lift.cuh.
    template <class Units>
    BS_DEVICE void with_scales(u32 stage, const Units& units) const {
        __syncwarp();  // the last ones are read
        u32 words[TILES * GROUPS][1];
#pragma unroll
        for (int i = 0; i < TILES * GROUPS; i++)
            ptx::load_shared(words[i], this->scales_at(stage, i / GROUPS) + 128 * (i % GROUPS) + 4 * lane);
        const auto store = [&](auto lifted) {
#pragma unroll
            for (int i = 0; i < TILES * GROUPS; i++) {
                u32 scales[4];
                Lift::template scales<decltype(lifted)::VALUE>(scales, words[i][0]);
                ptx::store_shared(decoded() + 512 * i + 16 * lane, scales[0], scales[2], scales[1], scales[3]);
            }
        };
        by_lift<Lift>(Lift::MAY_EXCEED ? exceeding(stage, words) : 0, store, units);
    }

    // Of the scales of the warp, or where it is one of four that multiply together, of all of these.
    BS_DEVICE u32 exceeding(u32 stage, const u32 (&own)[TILES * GROUPS][1]) const {
        u32 codes = 0;
        if constexpr (Ring::SCALE_RUNS == 0) {
#pragma unroll
            for (int i = 0; i < TILES * GROUPS; i++) codes |= own[i][0];
        } else {
#pragma unroll
            for (int i = 0; i < Ring::SCALE_RUNS; i++)
#pragma unroll
                for (int at = 0; at < Ring::RUN_BYTES; at += 512) {
                    u32 words[4];
                    ptx::load_shared(words, this->scale_run(stage, i) + at + 16 * lane);
                    codes |= words[0] | words[1] | words[2] | words[3];
                }
        }
        return Lift::exceeding(codes);
    }

    // Of a unit: for each of its steps the scales of rows g and g + 8.
    BS_DEVICE void load_decoded(u32 (&scales)[4][2], int tile, int unit) const {
        constexpr int PAIRS = 32 / BLOCK;  // of blocks, in a unit
        u32 words[PAIRS][4];
        const u32 from = decoded() + (tile * GROUPS + unit / UNITS_PER_GROUP) * 512 + 64 * (lane / 4) +
                         16 * (unit % UNITS_PER_GROUP * PAIRS);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) ptx::load_shared(words[i], from + 16 * i);
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int below = 0; below < 2; below++)
                scales[step][below] = words[16 * step / BLOCK / 2][16 * step / BLOCK % 2 * 2 + below];
    }

    // Of a unit of a tile.
    BS_DEVICE void load_codes(u32 (&words)[BITS], u32 from) const {
        ptx::load_shared(words, from + 4 * BITS * lane);
    }

    static BS_DEVICE void unscaled(const Decoder& decode, u32 (&w)[4], const u32* words, int step) {
        if constexpr (Lift::UNLIFTED)
            decode.bits(w, words, step);
        else
            decode.step(w, words, step);
    }

    // Weights of some steps, multiplied by the scales of rows g and g + 8.
    template <int STEPS>
    BS_DEVICE void scaled_steps(u32 (&w)[STEPS][4], const u32 (&words)[BITS], int i, int first,
                                const u32 (&scales)[4][2], bool lift) const {
#pragma unroll
        for (int step = 0; step < STEPS; step++) unscaled(decoder(i), w[step], words, first + step);
        scale_steps<STEPS>(w, first, scales, lift);
    }

    template <int STEPS>
    static BS_DEVICE void scale_steps(u32 (&w)[STEPS][4], int first, const u32 (&scales)[4][2], bool lift) {
        if (Lift::MAY_EXCEED && lift)
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int u = 0; u < 4; u++)
                    w[step][u] = X::times(w[step][u], X::from_floats(Lift::SCALE_LIFT, Lift::SCALE_LIFT));
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int u = 0; u < 4; u++) w[step][u] = X::times(w[step][u], scales[first + step][u % 2]);
    }

    // The weights of a unit's four products.
    BS_DEVICE void load_unit(u32 (&w)[4][4], u32 stage, int tile, int unit, bool lift) const {
        u32 words[BITS], scales[4][2];
        load_codes(words, this->codes_at(stage, tile));
        load_decoded(scales, tile, unit);
        scaled_steps(w, words, tile, 0, scales, lift);
    }
};

}  // namespace bs::gemm
