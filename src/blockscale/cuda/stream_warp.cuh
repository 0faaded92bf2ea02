// What a warp does with its chunks: decode, multiply, scale, sum.
#pragma once
#include "stream_copies.cuh"

template <class Decode>
struct Warp : Copies {
    const Decode* decoders;  // of gate and up, whose tables may differ
    float sums[TILES][B_TILES][SUMS];

    // Of `load_matrices`, which names by lane: two steps of k, their halves, and 8 columns. Rows of x
    // that are not there hold anything: each has columns of its own, which are not stored.
    BS_DEVICE u32 x_address(u32 stage) const {
        const int row = COLUMNS < 8 ? lane % 8 % COLUMNS : lane % 8;
        return stage + k_warp * X_BYTES + row * X_PITCH + 16 * (lane / 8);
    }

    // Chunks are worked off in parts: eight blocks where they stand side by side, else a unit of 64 k.
    static constexpr int PART = SPREAD > 1 ? 8 * BLOCK : 64;

    // A lane applies the scales of its columns: those in its own word of the eight blocks, or in the
    // words of 2 or 4 lanes.
    static constexpr int SCALE_WORDS = SPREAD == 1 ? 32 / BLOCK : COLUMNS == 4 ? 2 : 1;

    BS_DEVICE void load_scales(u32 (&words)[SCALE_WORDS], u32 from) const {
        from += 16 * (lane / 4);
        if (SPREAD > 1) from += 4 * (lane % 4 / SCALE_WORDS * SCALE_WORDS);
        if (SCALE_WORDS == 1)
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[0]) : "r"(from));
        else
            asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                         : "=r"(words[0]), "=r"(words[SCALE_WORDS - 1])
                         : "r"(from));
    }

    // Of a part, relative to the chunk's; eight blocks have 128 bytes, of which a unit takes some.
    static BS_DEVICE u32 scale_offset(int chunk, int part) {
        if (SPREAD > 1) return 128 * part;
        constexpr int UNITS_OF_EIGHT = BLOCK / 8;
        int unit = chunk * UNITS % UNITS_OF_EIGHT + part;
        return unit / UNITS_OF_EIGHT * 128 + unit % UNITS_OF_EIGHT * (16 / UNITS_OF_EIGHT);
    }

    // To scale weights, four lanes need the scales of the same rows, each twice in a register: every
    // lane decodes a quarter of them for all. Of two blocks they stand together: rows g and g + 8 of
    // the even one, then of the odd one.
    BS_DEVICE u32 decoded() const {
        return shared + STAGES * STAGE_BYTES + (row_warp * K_WARPS + k_warp) * DECODED_BYTES;
    }

    BS_DEVICE void decode_scales(u32 from) const {
        __syncwarp();  // the last ones are read
#pragma unroll
        for (int i = 0; i < TILES * EIGHTS; i++) {
            u32 word, out[4];
            float s[4];
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from + 128 * i + 4 * lane));
            ScaleDecoder<SCALE>::four(s, word);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float scale = s[j % 2 * 2 + j / 2] * SCALE_LIFT;
                out[j] = X::from_floats(scale, scale);
            }
            asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(decoded() + 512 * i + 16 * lane),
                         "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                         : "memory");
        }
        __syncwarp();
    }

    // Of the two blocks at a step of a unit.
    BS_DEVICE void load_decoded(u32 (&words)[4], int tile, int unit, int step) const {
        const u32 from = decoded() + (tile * EIGHTS + unit / 2) * 512;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(from + 64 * (lane / 4) + 16 * (unit % 2 * 2 + step / 2)));
    }

    BS_DEVICE void load_codes(u32 (&words)[BITS], u32 from) const {
        from += 4 * BITS * lane;
        if (BITS % 4 == 0) {
#pragma unroll
            for (int i = 0; i < BITS / 4; i++)
                asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(words[4 * i]), "=r"(words[4 * i + 1]), "=r"(words[4 * i + 2]),
                               "=r"(words[4 * i + 3])
                             : "r"(from + 16 * i));
        } else if (BITS % 2 == 0) {
#pragma unroll
            for (int i = 0; i < BITS / 2; i++)
                asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                             : "=r"(words[2 * i]), "=r"(words[2 * i + 1])
                             : "r"(from + 8 * i));
        } else {
#pragma unroll
            for (int i = 0; i < BITS; i++)
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(from + 4 * i));
        }
    }

    // sums += scale * c, for the blocks whose sums stand in c.
    BS_DEVICE void apply(float (&sum)[SUMS], const float (&c)[4], const float (&s)[4], int odd) {
        if constexpr (COLUMNS == 1) {  // the lane's two columns are blocks 2 t and 2 t + 1
            sum[0] = __fmaf_rn(s[1], c[1], __fmaf_rn(s[0], c[0], sum[0]));
            sum[1] = __fmaf_rn(s[3], c[3], __fmaf_rn(s[2], c[2], sum[1]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] = __fmaf_rn(s[i / 2 * 2 + odd], c[i], sum[i]);
        }
    }

    BS_DEVICE void multiply_chunk(u32 stage, int chunk, u32 zeros) {
        const u32 x_at = x_address(stage), codes = own(stage), scales = codes + TILES * CODE_BYTES;
        // Which block's columns this lane names; two steps of one load are two blocks of 16.
        const int place = COLUMNS < 8 ? lane % 8 / COLUMNS : 0;
        const int named = COLUMNS == 1 && BLOCK == 16 ? place - lane / 16 : place;
        if (SCALES_WEIGHTS) decode_scales(scales);
        constexpr int UNROLL = B_TILES > 1 ? 1 : CHUNK / PART;  // else registers run out
#pragma unroll UNROLL
        for (int part = 0; part < CHUNK / PART; part++) {
            u32 scale_words[TILES][SCALE_WORDS];
            if (!SCALES_WEIGHTS)
#pragma unroll
                for (int i = 0; i < TILES; i++)
                    load_scales(scale_words[i], scales + i * SCALE_BYTES + scale_offset(chunk, part));
            float c[SETS][TILES][4];
            u32 words[TILES][BITS];
#pragma unroll
            for (int step = 0; step < PART / 16; step += 2) {
                const int at = part * (PART / 16) + step;  // in the chunk
                if (step % 4 == 0)
#pragma unroll
                    for (int i = 0; i < TILES; i++)
                        load_codes(words[i], codes + i * CODE_BYTES + at / 4 * 128 * BITS);
                if constexpr (SPREAD > 1) {
                    u32 x[4];
                    load_matrices(x, (named == 16 * step / BLOCK / SETS ? x_at : zeros) + 32 * at);
#pragma unroll
                    for (int i = 0; i < TILES; i++) add_apart(c, i, words[i], x, step, scale_words[i]);
                } else {
                    add_together(words, scale_words, x_at + 32 * at, part, step);
                }
            }
        }
    }

    BS_DEVICE const Decode& decoder(int tile) const {
        return decoders[ELEMENT == TABLE ? tile % BRANCHES : 0];
    }

    // Two steps whose blocks share an accumulator with others; scaled when the eight are complete.
    BS_DEVICE void add_apart(float (&c)[SETS][TILES][4], int i, const u32 (&words)[BITS],
                             const u32 (&x)[4], int step, const u32 (&scale_words)[SCALE_WORDS]) {
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

    // Two steps of all columns: scaled weights are summed as they are, others block by block.
    BS_DEVICE void add_together(const u32 (&words)[TILES][BITS],
                                const u32 (&scale_words)[TILES][SCALE_WORDS], u32 x_at, int part,
                                int step) {
        const int block = 16 * step / BLOCK;
        u32 w[TILES][2][4];
        float s[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            if constexpr (SCALES_WEIGHTS) {
                scaled_weights(w[i], words[i], i, part, step);
            } else {
                decoder(i).step(w[i][0], words[i], step % 4);
                decoder(i).step(w[i][1], words[i], step % 4 + 1);
                ScaleDecoder<SCALE>::four(s[i], scale_words[i][block / 2]);
            }
#pragma unroll
        for (int b = 0; b < B_TILES; b++) {
            u32 x[4];
            load_matrices(x, x_at + 8 * b * X_PITCH);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                if constexpr (SCALES_WEIGHTS) {
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
    }

    // Weights of two steps, which are two blocks, multiplied by their scales.
    BS_DEVICE void scaled_weights(u32 (&w)[2][4], const u32 (&words)[BITS], int i, int part, int step) {
        u32 s[4];
        load_decoded(s, i, part, step);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            decoder(i).bits(w[half], words, step % 4 + half);
#pragma unroll
            for (int u = 0; u < 4; u++) w[half][u] = X::times(w[half][u], s[2 * half + u % 2]);
        }
    }

    // --- all chunks of this warp ------------------------------------------------------------

    BS_DEVICE void run(int first, int end, int columns, u32 zeros) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int b = 0; b < B_TILES; b++)
#pragma unroll
                for (int j = 0; j < SUMS; j++) sums[i][b][j] = 0.0f;
        copy_first(end, columns);
        u32 full = shared, empty = shared + (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
        for (int chunk = first; chunk < end; chunk += K_WARPS) {
            wait_for_copies<STAGES - 2>();
            meet_row();
            copy(empty, end, columns);
            if (chunk + k_warp < end) multiply_chunk(full, chunk + k_warp, zeros);
            empty = full;
            full = full + STAGE_BYTES == shared + STAGES * STAGE_BYTES ? shared : full + STAGE_BYTES;
        }
        wait_for_copies<0>();
    }

    // Sums of blocks that stood apart in the columns of one tile come together.
    BS_DEVICE void gather() {
        if constexpr (COLUMNS < 8)
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int j = 0; j < SUMS; j++)
#pragma unroll
                    for (int step = 2; step >= (COLUMNS == 4 ? 2 : 1); step /= 2)
                        sums[i][0][j] += __shfl_xor_sync(~0u, sums[i][0][j], step);
    }

    // To shared memory: [k_warp][branch][column][row], float32.
    BS_DEVICE void leave(float* out) const {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int row = 16 * (row_warp * (TILES / BRANCHES) + i / BRANCHES) + g;
            float* base = out + ((k_warp * BRANCHES + i % BRANCHES) * COLUMNS) * ROWS + row;
#pragma unroll
            for (int b = 0; b < B_TILES; b++)
#pragma unroll
                for (int j = 0; j < SUMS; j++) {
                    int column = COLUMNS == 1 ? 0 : (8 * b + 2 * t + j % 2) % COLUMNS;
                    int below = COLUMNS == 1 ? 8 * j : 8 * (j / 2);
                    if (COLUMNS >= 8 || 2 * t < COLUMNS || COLUMNS == 1)
                        base[column * ROWS + below] = sums[i][b][j] * SUM_LIFT;
                }
        }
    }
};
