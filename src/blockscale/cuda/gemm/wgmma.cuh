// What four warps do together with their chunks: decode, and multiply by `wgmma`.
#pragma once
#include "gemm/tma_ring.cuh"
#include "gemm/warp_tiles.cuh"

struct Warp : Tiles<Ring> {
    using Tiles::Tiles;

    // What is wanted of a tile and a unit of it: ahead of time, where there are registers for it.
    static constexpr bool AHEAD = REGISTERS > 128 || TILES * COLUMNS / 2 + 4 * BITS < 48;
    struct Coded {
        u32 words[BITS], scales[4][2];
    };

    BS_DEVICE void load(Coded& coded, u32 stage, int chunk, int i) const {
        const int part = i / TILES, tile = i % TILES;
        load_codes(coded.words, codes_at(stage, tile) + part * 128 * BITS);
        load_decoded(coded.scales, tile, unit_of(chunk, part));
    }

    // While the tensor cores have a unit, the next is decoded. `handed_over(i)`: the i-th unit is, and those
    // before it are done.
    template <class HandedOver>
    BS_DEVICE void multiply_chunk(u32 stage, int chunk, const HandedOver& handed_over) {
        const u32 x = panel_word(__shfl_sync(~0u, stage + k_warp * X_BYTES, 0));  // the same in all lanes
        const Lift lift = decode_scales(stage);
        Coded coded[2];
        load(coded[0], stage, chunk, 0);
#pragma unroll
        for (int i = 0; i < UNITS * TILES; i++) {
            const int part = i / TILES, tile = i % TILES;
            if (AHEAD ? i + 1 < UNITS * TILES : i > 0)
                load(coded[(i + AHEAD) % 2], stage, chunk, i + AHEAD);
            u32 w[4][4];
            scaled_steps(w, coded[i % 2].words, tile, 0, coded[i % 2].scales, lift);
            begin_products();
#pragma unroll
            for (int step = 0; step < 4; step++)
                Products<X, COLUMNS>::add(
                    sums[tile], w[step],
                    panel_descriptor(x + part * (PANEL_BYTES >> 4) + step * NEXT_STEP));
            commit_products();
            wait_for_products<1>();
            handed_over(i);
        }
    }

    template <class Meanwhile>
    BS_DEVICE void run(const Rows& rows, int first_column, int first, int end, const Meanwhile& meanwhile) {
        clear();
        for_chunks(rows, first_column, first, end, meanwhile,
                   [&](u32 stage, int chunk, const auto& handed_over) {
                       multiply_chunk(stage, chunk, handed_over);
                   });
    }
};
