// How rows of x come into a stage: copied, or decoded on the way.
#pragma once
#include "gemm/warp_coord.cuh"

// The lanes of all warps at the same k share the work: eight columns each, of as many rows as they reach.
struct XLanes : Place {
    using Place::Place;

    static constexpr int X_LANES = CHUNK / 8;                   // that take one row
    static constexpr int X_AT_ONCE = 32 * ROW_WARPS / X_LANES;  // rows

    BS_DEVICE int x_lane() const { return (32 * row_warp + lane) % X_LANES; }
    BS_DEVICE int x_row() const { return (32 * row_warp + lane) / X_LANES; }
    BS_DEVICE u32 x_to(u32 stage) const { return stage + k_warp * X_BYTES + 16 * x_lane(); }
};

// Numbers: asynchronous copies.
struct CopiedX : XLanes {
    using XLanes::XLanes;

    const u8* x_from;  // of the chunk `next`, here and below

    BS_DEVICE void aim_x(const Rows& rows, int first_column, int next) {
        x_from = static_cast<const u8*>(a.x) +
                 2 * (a.x_stride * (rows.begin + first_column + x_row()) +
                      static_cast<long long>(next) * CHUNK + 8 * x_lane());
    }

    BS_DEVICE void fetch_x(int, int) {}

    template <bool WHOLE>
    BS_DEVICE void put_x(u32 stage, int next, int columns) {
        const u32 to = x_to(stage);
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

    BS_DEVICE void step_x() { x_from += 2 * K_WARPS * CHUNK; }
};

#if BS_X_CODED
// Codes of E2M1, two to a byte, and bytes of scales. Products of the two are exact in bfloat16. They come
// through registers, so those of a chunk are fetched a chunk before they are put into its stage.
struct DecodedX : XLanes {
    using XLanes::XLanes;

    static constexpr int TURNS = (COLUMNS + X_AT_ONCE - 1) / X_AT_ONCE;
    const u8* x_codes;
    const u8* x_scales;
    u32 codes[TURNS], scale[TURNS];

    BS_DEVICE void aim_x(const Rows& rows, int first_column, int next) {
        const long long row = rows.begin + first_column + x_row();
        const int column = next * CHUNK + 8 * x_lane();
        x_codes = static_cast<const u8*>(a.x) + a.x_stride * row + column / 2;
        x_scales = a.x_block_scale + a.x_block_stride * row + column / BS_X_BLOCK;
    }

    BS_DEVICE void fetch_x(int next, int columns) {
        const bool there = next * CHUNK + 8 * x_lane() < a.k;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int row = i * X_AT_ONCE;
            const bool wanted = there && x_row() + row < columns;
            codes[i] = wanted ? *reinterpret_cast<const u32*>(x_codes + row * a.x_stride) : 0u;
            scale[i] = wanted ? x_scales[row * a.x_block_stride] : 0u;
        }
    }

    template <bool WHOLE>
    BS_DEVICE void put_x(u32 stage, int, int columns) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int row = x_row() + i * X_AT_ONCE;
            if (row >= columns) break;
            u32 d[4];
            decode_eight(d, codes[i], scale[i]);
            asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(x_to(stage) + row * X_PITCH),
                         "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
                         : "memory");
        }
    }

    // Bits of a code are moved to where bfloat16 has its fields, and lifted; decode.cuh has the same for
    // weights, whose bits stand in another order.
    static BS_DEVICE void decode_eight(u32 (&d)[4], u32 word, u32 scale_code) {
        float s[4];
        ScaleDecoder<BS_X_SCALE>::four(s, scale_code);
        const u32 factor = X::from_floats(s[0], s[0]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 pair = byte_of(word, i), apart = pair | pair << 12;
            const u32 bits = (apart << 12 & 0x80008000u) | (apart << 6 & 0x01C001C0u);
            d[i] = X::times(X::times(bits, X::power_of_two(126)), factor);
        }
    }

    BS_DEVICE void step_x() {
        x_codes += K_WARPS * CHUNK / 2;
        x_scales += K_WARPS * CHUNK / BS_X_BLOCK;
    }
};

typedef DecodedX XRows;
#else
typedef CopiedX XRows;
#endif
