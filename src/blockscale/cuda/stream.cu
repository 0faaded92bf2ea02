// Products with few rows of x: every weight is read once, decoded and multiplied on the way.
//
//     out[m, n] = x[m, k] * (w[n, k] * scale)
//
// Weights are the A operand of the tensor cores, rows of x the columns of B, so a tile is 16 rows of
// w by 8 rows of x. Sums of one block of k are scaled in float32 after they were summed; where the
// product of weight and scale is exact in 16 bits, and rows are many, weights are scaled instead. With fewer
// than 8 rows of x most columns would be idle: they hold other blocks instead. Of one row, the part of x
// in block j stands in column j and nowhere else, so that eight blocks stay apart in one accumulator
// and every lane applies only the scales of the columns it owns.
//
// A block of threads has ROW_WARPS x K_WARPS warps. The warps of a row take the same 16 * TILES rows of w
// and every K_WARPS-th chunk of 256 k; their sums are added in a fixed order. `splits` blocks share
// the k of one output; the last to arrive adds what the others left, again in a fixed order. Chunks
// arrive by asynchronous copies, STAGES deep.
//
// What it is specialised by is defined when it is compiled, with the prefix BS_.
#include "epilogue.cuh"
#include "scale.cuh"

typedef BS_X X;  // BFloat16 or Float16
constexpr Element ELEMENT = BS_ELEMENT;
constexpr Scale SCALE = BS_SCALE;
constexpr int BITS = BS_BITS;
constexpr int BLOCK = BS_BLOCK;      // 16 or 32 values
constexpr int COLUMNS = BS_COLUMNS;  // rows of x at a time: 1, 2, 4 or a multiple of 8
constexpr int TILES = BS_TILES;      // of a warp
constexpr int ROW_WARPS = BS_ROW_WARPS;
constexpr int K_WARPS = BS_K_WARPS;
constexpr int STAGES = BS_STAGES;
constexpr bool GATED = BS_GATED;          // tiles alternate between gate and up
constexpr bool SYMMETRIC = BS_SYMMETRIC;  // the lower half of a table mirrors its upper half

struct Weight {
    const u8* codes;
    const u8* scale;
    const float* tensor_scale;  // one per group, or null
    const float* table;         // of a codebook
    const void* bias;           // [groups, n], or null
};

struct Arguments {
    Weight weight[2];
    const void* x;         // [rows, k], rows apart by x_stride elements
    const float* x_scale;  // one per row, or null
    void* out;             // [rows, n]
    const void* group_sizes;
    float* partial;   // sums of the other splits
    u32* arrivals;    // one counter for each output tile, zero between launches
    long long x_stride;
    long long out_stride;
    int m, n, k, groups;
    int bias_dtype, out_dtype;
    int activation;
    float alpha, limit;
    int sizes_are_64_bits;
    int settled;  // no kernel that may still run writes the weights
};

constexpr int CHUNK = BS_CHUNK;  // k of a stage of one warp: 128 or 256
constexpr int UNITS = CHUNK / 64;
constexpr int WARPS = ROW_WARPS * K_WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int BRANCHES = GATED ? 2 : 1;
constexpr int ROWS = 16 * TILES / BRANCHES * ROW_WARPS;  // of the output, of one block
constexpr int SPREAD = COLUMNS < 8 ? 8 / COLUMNS : 1;    // blocks that stand apart in an accumulator
constexpr int SETS = 8 / SPREAD;                         // accumulators for eight blocks
constexpr int B_TILES = COLUMNS < 8 ? 1 : COLUMNS / 8;
constexpr int SUMS = COLUMNS == 1 ? 2 : 4;  // running sums of a lane, of one tile and B tile

// NVFP4: a weight has 2 significant bits, its scale 4. As bits of a 16-bit float, weights are 2^-LIFT of
// themselves; scales are multiplied by as much of that as their largest leaves room for, sums by the rest.
constexpr bool SCALES_WEIGHTS = SPREAD == 1 && ELEMENT == E2M1 && SCALE == UE4M3 && BLOCK == 16;
constexpr float SCALE_LIFT = X::is_bfloat16 ? 0x1p118f : 1.0f;
constexpr float SUM_LIFT = !SCALES_WEIGHTS ? 1.0f : X::is_bfloat16 ? 0x1p8f : 0x1p14f;

constexpr int X_PITCH = 2 * CHUNK + 16;  // bytes; the 16 spread rows over the banks
constexpr int X_BYTES = COLUMNS * X_PITCH;
constexpr int CODE_BYTES = UNITS * 128 * BITS;  // of one tile
constexpr int EIGHTS = CHUNK < 8 * BLOCK ? 1 : CHUNK / (8 * BLOCK);  // whose scales a chunk needs
constexpr int SCALE_BYTES = EIGHTS * 128;
constexpr int WARP_BYTES = TILES * (CODE_BYTES + SCALE_BYTES);
constexpr int STAGE_BYTES = K_WARPS * X_BYTES + WARPS * WARP_BYTES;
constexpr int DECODED_BYTES = SCALES_WEIGHTS ? TILES * EIGHTS * 512 : 0;  // of scales, for one warp
constexpr int ZERO_BYTES = 2 * CHUNK + 32;  // a row of x that is not there
static_assert(CHUNK >= 8 * BLOCK || COLUMNS >= 8, "eight blocks stand side by side");
static_assert(!GATED || TILES % 2 == 0, "tiles alternate between gate and up");
static_assert(COLUMNS == 1 || COLUMNS == 2 || COLUMNS == 4 || COLUMNS % 8 == 0, "columns");

// Which rows of x a block works on, and with which weights.
struct Rows {
    int group, begin, end;
};

#if BS_RAGGED  // groups of rows belong to experts
BS_DEVICE int group_size(const Arguments& a, int group) {
    long long size = a.sizes_are_64_bits ? static_cast<const long long*>(a.group_sizes)[group]
                                         : static_cast<const int*>(a.group_sizes)[group];
    return size < 0 ? 0 : size > a.m ? a.m : static_cast<int>(size);
}

// The blockIdx.z-th group that has rows, found by all threads together; `total` rows have a group.
BS_DEVICE Rows find_rows(const Arguments& a, int& total) {
    __shared__ int counts[WARPS], sums[WARPS];
    __shared__ Rows found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wanted = blockIdx.z;
    const int each = (a.groups + THREADS - 1) / THREADS, first = threadIdx.x * each;
    int own_count = 0, own_rows = 0;
    for (int g = first; g < min(first + each, a.groups); g++) {
        int size = group_size(a, g);
        own_count += size > 0;
        own_rows = min(own_rows + size, a.m);
    }
    int count = own_count, rows = own_rows;  // of this lane and those before it
    for (int step = 1; step < 32; step *= 2) {
        int other_count = __shfl_up_sync(~0u, count, step), other = __shfl_up_sync(~0u, rows, step);
        if (lane >= step) count += other_count, rows = min(rows + other, a.m);
    }
    int start = __shfl_up_sync(~0u, rows, 1), rank = count - own_count;
    if (lane == 0) start = 0;
    if (lane == 31) counts[warp] = count, sums[warp] = rows;
    if (threadIdx.x == 0) found = Rows{-1, 0, 0};
    __syncthreads();
    total = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) rank += counts[w], start = min(start + sums[w], a.m);
        total = min(total + sums[w], a.m);
    }
    if (rank <= wanted && wanted < rank + own_count)
        for (int g = first; g < min(first + each, a.groups); g++) {
            int end = min(start + group_size(a, g), a.m);
            if (group_size(a, g) > 0 && rank++ == wanted) found = Rows{g, start, end};
            start = end;
        }
    __syncthreads();
    return found;
}
#endif

template <class Decode>
struct Warp {
    const Arguments& a;
    const Decode* decoders;  // of gate and up, whose tables may differ
    u32 shared;  // address of the stages
    int lane, row_warp, k_warp;
    float sums[TILES][B_TILES][SUMS];

    // --- copies -----------------------------------------------------------------------------

    // Where the next chunk of this lane is; each copy moves them on.
    const u8* codes_from[TILES];
    const u8* scales_from[TILES];
    const u8* x_from;
    int next;  // chunk

    static constexpr int X_LANES = CHUNK / 8;                  // that copy one row of x
    static constexpr int X_AT_ONCE = 32 * ROW_WARPS / X_LANES;  // rows

    BS_DEVICE int x_lane() const { return (32 * row_warp + lane) % X_LANES; }
    BS_DEVICE int x_row() const { return (32 * row_warp + lane) / X_LANES; }

    BS_DEVICE void aim(const Rows& rows, int first_column, int first_chunk) {
        const int tiles = (a.n + 15) / 16, units = (a.k + 63) / 64;
        const int eights = (a.k / BLOCK + 7) / 8;
        next = first_chunk + k_warp;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const Weight& w = a.weight[i % BRANCHES];
            int tile = (blockIdx.x * ROW_WARPS + row_warp) * (TILES / BRANCHES) + i / BRANCHES;
            tile = min(tile, tiles - 1);  // a tile beyond the last is computed and not stored
            long long at = static_cast<long long>(rows.group) * tiles + tile;
            codes_from[i] = w.codes + at * units * (128 * BITS) +
                            static_cast<long long>(next) * CODE_BYTES + 16 * lane;
            scales_from[i] = w.scale + at * eights * 128 + 16 * lane;
        }
        x_from = static_cast<const u8*>(a.x) +
                 2 * (a.x_stride * (rows.begin + first_column + x_row()) +
                      static_cast<long long>(next) * CHUNK + 8 * x_lane());
    }

    BS_DEVICE u32 own(u32 stage) const {
        return stage + K_WARPS * X_BYTES + (row_warp * K_WARPS + k_warp) * WARP_BYTES;
    }

    // Of the chunk `next`; what is beyond k reads as zero.
    template <bool WHOLE>
    BS_DEVICE void copy_weights(u32 stage) {
        const u32 to = own(stage) + 16 * lane;
        const int codes_left = ((a.k + 63) / 64 - next * UNITS) * 128 * BITS - 16 * lane;
        const int eight = next * CHUNK / (8 * BLOCK), eights_left = (a.k / BLOCK + 7) / 8 - eight;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int j = 0; j < CODE_BYTES; j += 512)
                if (j + 512 > CODE_BYTES && 16 * lane >= CODE_BYTES - j)
                    continue;
                else if (WHOLE)
                    copy_async(to + i * CODE_BYTES + j, codes_from[i] + j);
                else
                    copy_async(to + i * CODE_BYTES + j,
                               j < codes_left ? codes_from[i] + j : a.weight[0].codes, j < codes_left);
            codes_from[i] += K_WARPS * CODE_BYTES;
            if (16 * lane < SCALE_BYTES) {
                const u32 scales_to = to + TILES * CODE_BYTES + i * SCALE_BYTES;
                const bool there = lane / 8 < eights_left;
                const u8* from = scales_from[i] + 128 * eight;
                if (WHOLE)
                    copy_async(scales_to, from);
                else
                    copy_async(scales_to, there ? from : a.weight[0].scale, there);
            }
        }
    }

    template <bool WHOLE>
    BS_DEVICE void copy_x(u32 stage, int columns) {
        const u32 to = stage + k_warp * X_BYTES + 16 * x_lane();
        const bool there = next * CHUNK + 8 * x_lane() < a.k;
        const u8* from = x_from;
        int row = x_row();
#pragma unroll
        for (int i = 0; i < COLUMNS; i += X_AT_ONCE) {
            if (row < columns) {
                if (WHOLE)
                    copy_async(to + row * X_PITCH, from);
                else
                    copy_async(to + row * X_PITCH, there ? from : static_cast<const u8*>(a.x), there);
            }
            row += X_AT_ONCE;
            from += 2 * a.x_stride * X_AT_ONCE;
        }
    }

    BS_DEVICE void step_on() {
        x_from += 2 * K_WARPS * CHUNK;
        next += K_WARPS;
    }

    BS_DEVICE bool is_whole() const { return (next + 1) * CHUNK <= a.k; }

    BS_DEVICE void copy(u32 stage, int end, int columns) {
        if (next < end) {
            if (is_whole()) {
                copy_weights<true>(stage);
                copy_x<true>(stage, columns);
            } else {
                copy_weights<false>(stage);
                copy_x<false>(stage, columns);
            }
        }
        step_on();
        commit_copies();
    }

    // All stages but one: weights ahead of the kernel before, which may still write x.
    BS_DEVICE void copy_first(int end, int columns) {
        const int begin = next;
        for (int i = 0; i < STAGES - 1; i++) {
            if (next < end)
                is_whole() ? copy_weights<true>(shared + i * STAGE_BYTES)
                           : copy_weights<false>(shared + i * STAGE_BYTES);
            next += K_WARPS;
        }
        wait_for_previous();
        next = begin;
        for (int i = 0; i < STAGES - 1; i++) {
            if (next < end)
                is_whole() ? copy_x<true>(shared + i * STAGE_BYTES, columns)
                           : copy_x<false>(shared + i * STAGE_BYTES, columns);
            step_on();
            commit_copies();
        }
    }

    // Warps that share x wait for each other, so that a slot is not overwritten while one reads it.
    BS_DEVICE void meet_row() const {
        if (ROW_WARPS == 1)
            __syncwarp();
        else if (K_WARPS == 1)
            __syncthreads();
        else
            meet(1 + k_warp, 32 * ROW_WARPS);
    }

    // --- a chunk ----------------------------------------------------------------------------

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

// One output from its sums, stored. `sum` is indexed by branch.
BS_DEVICE void finish(const Arguments& a, const float (&sum)[BRANCHES], int group, int row, int column) {
    float y[BRANCHES];
#pragma unroll
    for (int i = 0; i < BRANCHES; i++) {
        y[i] = sum[i];
        if (a.x_scale) y[i] *= a.x_scale[row];
        if (a.weight[i].tensor_scale) y[i] *= a.weight[i].tensor_scale[group];
        if (a.weight[i].bias)
            y[i] += load_number(a.weight[i].bias, static_cast<long long>(group) * a.n + column,
                                a.bias_dtype);
    }
    float value = GATED ? activate(a.activation, y[0], y[BRANCHES - 1], a.alpha, a.limit) : y[0];
    store_number(a.out, row * a.out_stride + column, value, a.out_dtype);
}

// Sums of all k warps in order; of all splits in order, by the block that arrives last.
BS_DEVICE void reduce_and_store(const Arguments& a, const float* left, const Rows& rows,
                                int first_column, int columns, u32 tile) {
    constexpr int SIZE = COLUMNS * ROWS;
    const int splits = gridDim.y, split = blockIdx.y;
    float* partial = a.partial + static_cast<long long>(tile) * splits * BRANCHES * SIZE;
    for (int i = threadIdx.x; i < columns * ROWS; i += THREADS) {
        float sum[BRANCHES];
#pragma unroll
        for (int branch = 0; branch < BRANCHES; branch++) {
            sum[branch] = left[branch * SIZE + i];
#pragma unroll
            for (int warp = 1; warp < K_WARPS; warp++)
                sum[branch] += left[(warp * BRANCHES + branch) * SIZE + i];
            if (splits > 1) partial[(split * BRANCHES + branch) * SIZE + i] = sum[branch];
        }
        int column = blockIdx.x * ROWS + i % ROWS;
        if (splits == 1 && column < a.n)
            finish(a, sum, rows.group, rows.begin + first_column + i / ROWS, column);
    }
    if (splits == 1) return;
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(a.arrivals + tile, 1u) == splits - 1;
        if (is_last) a.arrivals[tile] = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = threadIdx.x; i < columns * ROWS; i += THREADS) {
        int column = blockIdx.x * ROWS + i % ROWS;
        if (column >= a.n) continue;
        float sum[BRANCHES];
#pragma unroll
        for (int branch = 0; branch < BRANCHES; branch++) {
            sum[branch] = 0.0f;
            for (int s = 0; s < splits; s++)
                sum[branch] += __ldcg(partial + (s * BRANCHES + branch) * SIZE + i);
        }
        finish(a, sum, rows.group, rows.begin + first_column + i / ROWS, column);
    }
}

BS_DEVICE void work(const Arguments& a, u8* memory, const Rows& rows) {
    typedef Decoder<X, ELEMENT, BITS, SYMMETRIC> Decode;
    Decode decoders[BRANCHES];
    const int warp = threadIdx.x / 32;
    Warp<Decode> self{a, decoders, shared_address(memory) + ZERO_BYTES, static_cast<int>(threadIdx.x % 32),
                      warp / K_WARPS, warp % K_WARPS};
    const int chunks = (a.k + CHUNK - 1) / CHUNK;
    const int first = static_cast<int>(static_cast<long long>(chunks) * blockIdx.y / gridDim.y);
    const int end = static_cast<int>(static_cast<long long>(chunks) * (blockIdx.y + 1) / gridDim.y);
    if (!a.settled) wait_for_previous();
#pragma unroll
    for (int i = 0; i < BRANCHES; i++) decoders[i].load(a.weight[i].table);
    for (int column = rows.begin; column < rows.end; column += COLUMNS) {
        const int columns = min(rows.end - column, COLUMNS);
        self.aim(rows, column - rows.begin, first);
        self.run(first, end, columns, shared_address(memory));
        self.gather();
        __syncthreads();  // the stages are read no more: sums take their place
        float* left = reinterpret_cast<float*>(memory + ZERO_BYTES);
        self.leave(left);
        __syncthreads();
        reduce_and_store(a, left, rows, column - rows.begin, columns, blockIdx.z * gridDim.x + blockIdx.x);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BS_MIN_BLOCKS)
    stream(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) u8 memory[];
    let_next_start();
    for (int i = threadIdx.x; i < ZERO_BYTES / 4; i += THREADS) reinterpret_cast<u32*>(memory)[i] = 0;
#if BS_RAGGED
    wait_for_previous();  // it may have written the group sizes
    int total;
    const Rows rows = find_rows(a, total);
    if (blockIdx.y == 0)  // rows of nobody
        for (int row = total + blockIdx.z; row < a.m; row += gridDim.z)
            for (int i = threadIdx.x; i < ROWS; i += THREADS)
                if (blockIdx.x * ROWS + i < a.n)
                    store_number(a.out, row * a.out_stride + blockIdx.x * ROWS + i, 0.0f, a.out_dtype);
    if (rows.group < 0) return;
#else
    const Rows rows{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.z) * a.m,
                    static_cast<int>(blockIdx.z + 1) * a.m};
    __syncthreads();
#endif
    work(a, memory, rows);
}
