// How cp.async rings bring rows of x into a stage: copied, or decoded on the way.
#pragma once
#include "gemm/warp_coord.cuh"
#include "ptx/cp_async.cuh"

namespace bs::gemm {

// The lanes of all warps at the same k share the work: eight values of k each, of as many rows as they reach.
template <class Shape>
struct XLanes : WarpCoord<Shape> {
    using Coord = WarpCoord<Shape>;
    using Coord::Coord, Coord::lane, Coord::n_warp, Coord::k_warp;

    static constexpr int X_LANES = Shape::TILE_K / 8;                // that take one row
    static constexpr int X_AT_ONCE = 32 * Shape::N_WARPS / X_LANES;  // rows

    BS_DEVICE int x_lane() const { return (32 * n_warp + lane) % X_LANES; }
    BS_DEVICE int x_row() const { return (32 * n_warp + lane) / X_LANES; }
    BS_DEVICE u32 x_to(u32 stage) const { return stage + k_warp * Shape::X_BYTES + 16 * x_lane(); }
};

// 16-bit floats: cp.async.
template <class Shape>
struct CopiedX : XLanes<Shape> {
    using Lanes = XLanes<Shape>;
    using Lanes::Lanes, Lanes::a, Lanes::x_lane, Lanes::x_row, Lanes::x_to, Lanes::X_AT_ONCE;

    const u8* x_from;  // of the k tile `next`, here and below

    BS_DEVICE void aim_x(const RowRange& rows, int first_m, int next) {
        x_from = static_cast<const u8*>(a.x) +
                 2 * (a.x_stride * (rows.begin + first_m + x_row()) +
                      static_cast<long long>(next) * Shape::TILE_K + 8 * x_lane());
    }

    BS_DEVICE void fetch_x(int, int) {}

    template <bool WHOLE>
    BS_DEVICE void put_x(u32 stage, int next, int m) {
        const u32 to = x_to(stage);
        const bool there = next * Shape::TILE_K + 8 * x_lane() < a.k;
        const u8* from = x_from;
        int row = x_row();
#pragma unroll
        for (int i = 0; i < Shape::TILE_M; i += X_AT_ONCE) {
            if (row < m) {
                if (WHOLE)
                    ptx::cp_async(to + row * Shape::X_PITCH, from);
                else
                    ptx::cp_async(to + row * Shape::X_PITCH, there ? from : static_cast<const u8*>(a.x), there);
            }
            row += X_AT_ONCE;
            from += 2 * a.x_stride * X_AT_ONCE;
        }
    }

    BS_DEVICE void step_x() { x_from += 2 * Shape::K_WARPS * Shape::TILE_K; }
};

// Codes of E2M1, two to a byte, and bytes of scales. Products of the two are exact in bfloat16. They come through
// registers, so those of a k tile are fetched one k tile before they are put into its stage.
template <class Shape>
struct DecodedX : XLanes<Shape> {
    using Lanes = XLanes<Shape>;
    using Lanes::Lanes, Lanes::a, Lanes::x_lane, Lanes::x_row, Lanes::x_to, Lanes::X_AT_ONCE;
    using X = typename Shape::X;
    using XScales = typename Shape::XScales;

    static constexpr int TURNS = (Shape::TILE_M + X_AT_ONCE - 1) / X_AT_ONCE;
    const u8* x_codes;
    const u8* x_scales;
    u32 codes[TURNS], scale[TURNS];

    BS_DEVICE void aim_x(const RowRange& rows, int first_m, int next) {
        const long long row = rows.begin + first_m + x_row();
        const int k = next * Shape::TILE_K + 8 * x_lane();
        x_codes = static_cast<const u8*>(a.x) + a.x_stride * row + k / 2;
        x_scales = a.x_block_scale + a.x_block_stride * row + k / XScales::BLOCK;
    }

    BS_DEVICE void fetch_x(int next, int m) {
        const bool there = next * Shape::TILE_K + 8 * x_lane() < a.k;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int row = i * X_AT_ONCE;
            const bool wanted = there && x_row() + row < m;
            codes[i] = wanted ? *reinterpret_cast<const u32*>(x_codes + row * a.x_stride) : 0u;
            scale[i] = wanted ? x_scales[row * a.x_block_stride] : 0u;
        }
    }

    template <bool WHOLE>
    BS_DEVICE void put_x(u32 stage, int, int m) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int row = x_row() + i * X_AT_ONCE;
            if (row >= m) break;
            u32 d[4];
            decode_eight(d, codes[i], scale[i]);
            ptx::store_shared(x_to(stage) + row * Shape::X_PITCH, d[0], d[1], d[2], d[3]);
        }
    }

    // The bits of a code move to the fields of a bfloat16, which is then 2^-126 of its value; decode/floats.cuh does
    // the same for weights, whose bits stand in another order.
    static BS_DEVICE void decode_eight(u32 (&d)[4], u32 word, u32 scale_code) {
        float s[4];
        decode::ScaleDecoder<XScales::SCALE>::four(s, scale_code);
        const u32 factor = X::from_floats(s[0], s[0]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 pair = decode::byte_of(word, i), apart = pair | pair << 12;
            const u32 bits = (apart << 12 & 0x80008000u) | (apart << 6 & 0x01C001C0u);
            d[i] = X::times(X::times(bits, X::power_of_two(126)), factor);
        }
    }

    BS_DEVICE void step_x() {
        x_codes += Shape::K_WARPS * Shape::TILE_K / 2;
        x_scales += Shape::K_WARPS * Shape::TILE_K / XScales::BLOCK;
    }
};

template <class Shape>
using XRows = typename Either<Shape::X_CODED, DecodedX<Shape>, CopiedX<Shape>>::Type;

}  // namespace bs::gemm
