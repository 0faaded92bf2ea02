// Up to 4 rows of x, multiplied by `mma`: the columns that would be idle hold other blocks.
#pragma once
#include "gemm/cp_async_ring.cuh"
#include "gemm/warp_tiles.cuh"

struct Warp : Tiles<Copies> {
    using Tiles::Tiles;

    static constexpr int PART = 8 * BLOCK;  // eight blocks stand side by side
    static constexpr int UNROLL = REGISTERS < 128 ? 1 : CHUNK / PART;

    // A lane applies the scales of its columns: those in its own word of the eight blocks, or in the
    // words of 2 or 4 lanes.
    static constexpr int SCALE_WORDS = COLUMNS == 4 ? 2 : 1;

    BS_DEVICE void load_scales(u32 (&words)[SCALE_WORDS], u32 from) const {
        from += 16 * (lane / 4) + 4 * (lane % 4 / SCALE_WORDS * SCALE_WORDS);
        load_words(words, from);
    }

    template <class Meanwhile>
    BS_DEVICE void run(const Rows& rows, int first_column, int first, int end, const Meanwhile& meanwhile) {
        clear();
        for_chunks(rows, first_column, first, end, meanwhile,
                   [&](u32 stage, int) { multiply_chunk(stage); });
        gather();
    }

    BS_DEVICE void multiply_chunk(u32 stage) {
        const u32 x_at = x_address(stage, lane % 8 % COLUMNS), zeros = shared - ZERO_BYTES;
        // Which block's columns this lane names; two steps of one load are two blocks of 16.
        const int place = lane % 8 / COLUMNS;
        const int named = COLUMNS == 1 && BLOCK == 16 ? place - lane / 16 : place;
#pragma unroll UNROLL
        for (int part = 0; part < CHUNK / PART; part++) {
            u32 scale_words[TILES][SCALE_WORDS], words[TILES][BITS];
            float c[SETS][TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; i++)
                load_scales(scale_words[i], scales_at(stage, i) + 128 * part);
#pragma unroll
            for (int step = 0; step < PART / 16; step += 2) {
                const int at = part * (PART / 16) + step;  // in the chunk
                if (step % 4 == 0)
#pragma unroll
                    for (int i = 0; i < TILES; i++)
                        load_codes(words[i], codes_at(stage, i) + at / 4 * 128 * BITS);
                u32 x[4];
                load_matrices(x, (named == 16 * step / BLOCK / SETS ? x_at : zeros) + 32 * at);
#pragma unroll
                for (int i = 0; i < TILES; i++) add(c, i, words[i], x, step, scale_words[i]);
            }
        }
    }

    // Two steps whose blocks share an accumulator with others; scaled when the eight are complete.
    BS_DEVICE void add(float (&c)[SETS][TILES][4], int i, const u32 (&words)[BITS], const u32 (&x)[4],
                       int step, const u32 (&scale_words)[SCALE_WORDS]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 w[4];
            decoder(i).step(w, words, (step + half) % 4);
            const int block = 16 * (step + half) / BLOCK, set = block % SETS;
            const bool first = (step + half) % (BLOCK / 16) == 0;
            const bool last = (step + half + 1) % (BLOCK / 16) == 0;
            if (first && block < SETS)
                multiply<X>(c[set][i], w, x[2 * half], x[2 * half + 1]);
            else
                multiply_add<X>(c[set][i], w, x[2 * half], x[2 * half + 1]);
            if (last && block >= 8 - SETS) {
                float s[4];
                ScaleDecoder<SCALE>::four(s, scale_words[set / 2]);
                apply(sums[i][0], c[set][i], s, set % 2);
            }
        }
    }

    // sums += scale * c, for the blocks whose sums stand in c.
    BS_DEVICE void apply(float (&sum)[SUMS], const float (&c)[4], const float (&s)[4], int odd) const {
        if (COLUMNS == 1) {  // the lane's two columns are blocks 2 t and 2 t + 1
            sum[0] = __fmaf_rn(s[1], c[1], __fmaf_rn(s[0], c[0], sum[0]));
            sum[1] = __fmaf_rn(s[3], c[3], __fmaf_rn(s[2], c[2], sum[1]));
        } else {
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i] = __fmaf_rn(s[i / 2 * 2 + odd], c[i], sum[i]);
        }
    }

    // Sums of blocks that stood apart in the columns of one tile come together.
    BS_DEVICE void gather() {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < SUMS; j++)
#pragma unroll
                for (int step = 2; step >= (COLUMNS == 4 ? 2 : 1); step /= 2)
                    sums[i][0][j] += __shfl_xor_sync(~0u, sums[i][0][j], step);
    }
};
