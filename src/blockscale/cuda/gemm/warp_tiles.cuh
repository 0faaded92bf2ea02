// The tiles of a warp: codes and scales out of shared memory, weights in registers, sums.
#pragma once
#include "gemm/warp_coord.cuh"
#include "gemm/reduce.cuh"

template <class Fetch>
struct Tiles : Fetch {
    using Fetch::shared, Fetch::lane, Fetch::row_warp, Fetch::k_warp;

    const Decode* decoders;  // of gate and up, whose tables may differ
    float sums[TILES][B_TILES][SUMS];

    BS_DEVICE Tiles(const Arguments& a, u32 shared, const Decode* decoders)
        : Fetch(a, shared), decoders(decoders) {}

    BS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int b = 0; b < B_TILES; b++)
#pragma unroll
                for (int j = 0; j < SUMS; j++) sums[i][b][j] = 0.0f;
    }

    BS_DEVICE const Decode& decoder(int tile) const {
        return decoders[ELEMENT == TABLE ? tile % BRANCHES : 0];
    }

    // Units of 64 k are counted from the first of the eight blocks in which a chunk begins.
    static constexpr int UNITS_OF_EIGHT = BLOCK / 8;

    static BS_DEVICE int unit_of(int chunk, int part) { return chunk * UNITS % UNITS_OF_EIGHT + part; }

    // To scale weights, four lanes need the scales of the same rows, each twice in a register: every
    // lane decodes a quarter of them for all. Of two blocks they stand together: rows g and g + 8 of
    // the even one, then of the odd one.
    BS_DEVICE u32 decoded() const {
        return shared + STAGES * STAGE_BYTES + (row_warp * K_WARPS + k_warp) * DECODED_BYTES;
    }

    // Whether the weights of a chunk must be lifted before they are scaled, since a scale leaves no room.
    typedef bool Lift;

    BS_DEVICE Lift decode_scales(u32 stage) const {
        __syncwarp();  // the last ones are read
        u32 words[TILES * EIGHTS][1];
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < TILES * EIGHTS; i++) {
            load_words(words[i], this->scales_at(stage, i / EIGHTS) + 128 * (i % EIGHTS) + 4 * lane);
            float s[4];
            if (MAY_EXCEED) ScaleDecoder<SCALE>::four(s, words[i][0]);
            if (MAY_EXCEED) largest = fmaxf(largest, fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])));
        }
        const Lift lift = MAY_EXCEED && __any_sync(~0u, largest > LARGEST_LIFTED);
        const float factor = lift ? 1.0f : SCALE_LIFT;
#pragma unroll
        for (int i = 0; i < TILES * EIGHTS; i++) {
            u32 out[4];
            float s[4];
            ScaleDecoder<SCALE>::four(s, words[i][0]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float scale = s[j % 2 * 2 + j / 2] * factor;
                out[j] = X::from_floats(scale, scale);
            }
            asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(decoded() + 512 * i + 16 * lane),
                         "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                         : "memory");
        }
        __syncwarp();
        return lift;
    }

    // Of a unit: for each of its steps the scales of rows g and g + 8.
    BS_DEVICE void load_decoded(u32 (&scales)[4][2], int tile, int unit) const {
        constexpr int PAIRS = 32 / BLOCK;  // of blocks, in a unit
        u32 words[PAIRS][4];
        const u32 from = decoded() + (tile * EIGHTS + unit / UNITS_OF_EIGHT) * 512 + 64 * (lane / 4) +
                         16 * (unit % UNITS_OF_EIGHT * PAIRS);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) load_words(words[i], from + 16 * i);
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int below = 0; below < 2; below++)
                scales[step][below] = words[16 * step / BLOCK / 2][16 * step / BLOCK % 2 * 2 + below];
    }

    // Neighbouring words, by as few loads as their number allows.
    template <int COUNT>
    static BS_DEVICE void load_words(u32 (&words)[COUNT], u32 from) {
        constexpr int WIDTH = COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
#pragma unroll
        for (int i = 0; i < COUNT; i += WIDTH)
            if constexpr (WIDTH == 4)
                asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                             : "r"(from + 4 * i));
            else if constexpr (WIDTH == 2)
                asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                             : "=r"(words[i]), "=r"(words[i + 1])
                             : "r"(from + 4 * i));
            else
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(from + 4 * i));
    }

    // Of a unit of a tile.
    BS_DEVICE void load_codes(u32 (&words)[BITS], u32 from) const { load_words(words, from + 4 * BITS * lane); }

    template <class D>  // of which only some have both
    static BS_DEVICE void unscaled(const D& decode, u32 (&w)[4], const u32 (&words)[BITS], int step) {
        if constexpr (UNLIFTED)
            decode.bits(w, words, step);
        else
            decode.step(w, words, step);
    }

    // Weights of some steps, multiplied by the scales of rows g and g + 8.
    template <int STEPS>
    BS_DEVICE void scaled_steps(u32 (&w)[STEPS][4], const u32 (&words)[BITS], int i, int first,
                                const u32 (&scales)[4][2], Lift lift) const {
#pragma unroll
        for (int step = 0; step < STEPS; step++) unscaled(decoder(i), w[step], words, first + step);
        if (MAY_EXCEED && lift)
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int u = 0; u < 4; u++) w[step][u] = X::times(w[step][u], X::from_floats(SCALE_LIFT, SCALE_LIFT));
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int u = 0; u < 4; u++) w[step][u] = X::times(w[step][u], scales[first + step][u % 2]);
    }

    // To shared memory: [k_warp][branch][column][row], float32.
    BS_DEVICE void leave(float* out) const {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int row = 16 * (row_warp * (TILES / BRANCHES) + i / BRANCHES) + g;
            float* base = out + ((k_warp * BRANCHES + i % BRANCHES) * COLUMNS) * SUM_PITCH + row;
#pragma unroll
            for (int b = 0; b < B_TILES; b++)
#pragma unroll
                for (int j = 0; j < SUMS; j++) {
                    int column = COLUMNS == 1 ? 0 : (8 * b + 2 * t + j % 2) % COLUMNS;
                    int below = COLUMNS == 1 ? 8 * j : 8 * (j / 2);
                    if (COLUMNS >= 8 || 2 * t < COLUMNS || COLUMNS == 1)
                        base[column * SUM_PITCH + below] = sums[i][b][j] * SUM_LIFT;
                }
        }
    }
};
