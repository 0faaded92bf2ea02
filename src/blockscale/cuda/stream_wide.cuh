// What four warps do together with their chunks: decode, and multiply by `wgmma`.
#pragma once
#include "stream_ring.cuh"
#include "stream_tiles.cuh"

struct Warp : Tiles<Ring> {
    using Tiles::Tiles;

    // What is wanted of a tile and a unit of it: ahead of time, where there are registers for it.
    static constexpr int REGISTERS = 65536 / (THREADS * BS_MIN_BLOCKS);
    static constexpr bool AHEAD = REGISTERS > 128 || TILES * COLUMNS / 2 + 4 * BITS < 48;
    struct Coded {
        u32 words[BITS], scales[4][2];
    };

    BS_DEVICE void load(Coded& coded, u32 stage, int chunk, int i) const {
        const int part = i / TILES, tile = i % TILES;
        load_codes(coded.words, codes_at(stage, tile) + part * 128 * BITS);
        load_decoded(coded.scales, tile, unit_of(chunk, part));
    }

    // While the tensor cores have a unit, the next is decoded. When the first has been handed over and those
    // before it are done, the chunk before this one has been read.
    BS_DEVICE void multiply_chunk(u32 stage, int chunk, u32 read_before) {
        const u32 x = panel_word(__shfl_sync(~0u, stage + k_warp * X_BYTES, 0));  // the same in all lanes
        decode_scales(stage);
        Coded coded[2];
        load(coded[0], stage, chunk, 0);
#pragma unroll
        for (int i = 0; i < UNITS * TILES; i++) {
            const int part = i / TILES, tile = i % TILES;
            if (AHEAD ? i + 1 < UNITS * TILES : i > 0)
                load(coded[(i + AHEAD) % 2], stage, chunk, i + AHEAD);
            u32 w[4][4];
#pragma unroll
            for (int step = 0; step < 4; step++)
                scaled_step(w[step], coded[i % 2].words, tile, step, coded[i % 2].scales[step]);
            begin_products();
#pragma unroll
            for (int step = 0; step < 4; step++)
                Products<X, COLUMNS>::add(
                    sums[tile], w[step],
                    panel_descriptor(x + part * (PANEL_BYTES >> 4) + step * NEXT_STEP));
            commit_products();
            wait_for_products<1>();
            if (i == 0 && read_before && lane == 0) arrive(read_before);
        }
    }

    BS_DEVICE void run(const Rows& rows, int first_column, int first, int end) {
        clear();
        for_chunks(rows, first_column, first, end, [&](u32 stage, int chunk, u32 read_before) {
            multiply_chunk(stage, chunk, read_before);
        });
    }
};
