// 8 rows of x and more, multiplied by `mma`: weights or the sums of blocks are scaled.
#pragma once
#include "gemm/cp_async_ring.cuh"
#include "gemm/warp_tiles.cuh"

struct Warp : Tiles<Copies> {
    using Tiles::Tiles;

    static constexpr int SCALE_WORDS = 32 / BLOCK;  // of a unit
    static constexpr int UNROLL = B_TILES > (SCALES_WEIGHTS ? 2 : 1) ? 1 : UNITS;  // else registers run out

    // What multiplies the weights of a unit, or their sums.
    union Scales {
        u32 of_weights[4][2];
        u32 of_sums[SCALE_WORDS];
    };

    template <class Meanwhile>
    BS_DEVICE void run(const Rows& rows, int first_column, int first, int end, const Meanwhile& meanwhile) {
        clear();
        for_chunks(rows, first_column, first, end, meanwhile,
                   [&](u32 stage, int chunk) { multiply_chunk(stage, chunk); });
    }

    BS_DEVICE void multiply_chunk(u32 stage, int chunk) {
        const u32 x_at = x_address(stage, lane % 8);
        const Lift lift = SCALES_WEIGHTS && decode_scales(stage);
#pragma unroll UNROLL
        for (int part = 0; part < UNITS; part++) {
            const int unit = unit_of(chunk, part);
            u32 words[TILES][BITS];
            Scales scales[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                load_codes(words[i], codes_at(stage, i) + part * 128 * BITS);
                if (SCALES_WEIGHTS)
                    load_decoded(scales[i].of_weights, i, unit);
                else  // eight blocks have 128 bytes, of which a unit takes some
                    load_words(scales[i].of_sums, scales_at(stage, i) + unit / UNITS_OF_EIGHT * 128 +
                                                      unit % UNITS_OF_EIGHT * 4 * SCALE_WORDS +
                                                      16 * (lane / 4));
            }
            add(words, scales, x_at + 128 * part, 0, lift);
            add(words, scales, x_at + 128 * part + 64, 2, lift);
        }
    }

    // Two steps of all columns: scaled weights are summed as they are, others block by block.
    BS_DEVICE void add(const u32 (&words)[TILES][BITS], const Scales (&scales)[TILES], u32 x_at, int step,
                       Lift lift) {
        const int block = 16 * step / BLOCK;
        u32 w[TILES][2][4];
        float s[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            if (SCALES_WEIGHTS) {
                scaled_steps(w[i], words[i], i, step, scales[i].of_weights, lift);
            } else {
                decoder(i).step(w[i][0], words[i], step);
                decoder(i).step(w[i][1], words[i], step + 1);
                ScaleDecoder<SCALE>::four(s[i], scales[i].of_sums[block / 2]);
            }
#pragma unroll
        for (int b = 0; b < B_TILES; b++) {
            u32 x[4];
            load_matrices(x, x_at + 8 * b * X_PITCH);
#pragma unroll
            for (int i = 0; i < TILES; i++)
                if (SCALES_WEIGHTS) {
                    multiply_add<X>(sums[i][b], w[i][0], x[0], x[1]);
                    multiply_add<X>(sums[i][b], w[i][1], x[2], x[3]);
                } else {
                    float c[4];
                    multiply<X>(c, w[i][0], x[0], x[1]);
                    if (BLOCK == 16) {
                        apply(sums[i][b], c, s[i], 0);
                        multiply<X>(c, w[i][1], x[2], x[3]);
                    } else {
                        multiply_add<X>(c, w[i][1], x[2], x[3]);
                    }
                    apply(sums[i][b], c, s[i], BLOCK == 16 ? 1 : block % 2);
                }
        }
    }

    // sum += scale * c, for the block whose sums stand in c.
    BS_DEVICE void apply(float (&sum)[4], const float (&c)[4], const float (&s)[4], int odd) const {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = __fmaf_rn(s[i / 2 * 2 + odd], c[i], sum[i]);
    }
};
