// The mainloop for 8 rows of x and more by mma.sync: weights or the sums of blocks are scaled.
#pragma once
#include "gemm/cp_async_ring.cuh"
#include "gemm/warp_tiles.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace bs::gemm {

template <class Shape>
struct MmaMainloop : WarpTiles<Shape, CpAsyncRing<Shape>> {
    using Tiles = WarpTiles<Shape, CpAsyncRing<Shape>>;
    using Tiles::Tiles, Tiles::lane, Tiles::sums, Tiles::TILES, Tiles::BITS, Tiles::BLOCK, Tiles::UNITS_PER_GROUP;
    using X = typename Shape::X;
    using ScaleDecoder = decode::ScaleDecoder<Shape::Format::SCALE>;

    static constexpr int SCALE_WORDS = 32 / BLOCK;  // of a unit
    static constexpr bool SCALES_WEIGHTS = Shape::SCALES_WEIGHTS;
    static constexpr int UNROLL = Shape::M_TILES > (SCALES_WEIGHTS ? 2 : 1) ? 1 : Shape::UNITS;  // else registers spill

    // What multiplies the weights of a unit, or their sums.
    union Scales {
        u32 of_weights[4][2];
        u32 of_sums[SCALE_WORDS];
    };

    template <class Meanwhile>
    BS_DEVICE void run(const RowRange& rows, int first_m, int first, int end, const Meanwhile& meanwhile) {
        this->clear();
        this->for_k_tiles(rows, first_m, first, end, meanwhile,
                          [&](u32 stage, int k_tile) { multiply(stage, k_tile); });
    }

    BS_DEVICE void multiply(u32 stage, int k_tile) {
        const u32 x_at = this->x_address(stage, lane % 8);
        if constexpr (SCALES_WEIGHTS)
            this->with_scales(stage, [&](auto lifted) { add_units<decltype(lifted)::VALUE>(stage, k_tile, x_at); });
        else
            add_units<false>(stage, k_tile, x_at);
    }

    template <bool LIFTED>
    BS_DEVICE void add_units(u32 stage, int k_tile, u32 x_at) {
#pragma unroll UNROLL
        for (int part = 0; part < Shape::UNITS; part++) {
            const int unit = this->unit_of(k_tile, part);
            u32 words[TILES][BITS];
            Scales scales[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                this->load_codes(words[i], this->codes_at(stage, i) + part * Shape::Format::UNIT_BYTES);
                if (SCALES_WEIGHTS)
                    this->load_decoded(scales[i].of_weights, i, unit);
                else  // a scale group has 128 bytes, of which a unit takes some
                    ptx::load_shared(scales[i].of_sums, this->scales_at(stage, i) + unit / UNITS_PER_GROUP * 128 +
                                                            unit % UNITS_PER_GROUP * 4 * SCALE_WORDS +
                                                            16 * (lane / 4));
            }
            add(words, scales, x_at + 128 * part, 0, LIFTED);
            add(words, scales, x_at + 128 * part + 64, 2, LIFTED);
        }
    }

    // Two steps of all rows of x: scaled weights are summed as they are, others block by block.
    BS_DEVICE void add(const u32 (&words)[TILES][BITS], const Scales (&scales)[TILES], u32 x_at, int step,
                       bool lift) {
        const int block = 16 * step / BLOCK;
        u32 w[TILES][2][4];
        float s[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            if (SCALES_WEIGHTS) {
                this->scaled_steps(w[i], words[i], i, step, scales[i].of_weights, lift);
            } else {
                this->decoder(i).step(w[i][0], words[i], step);
                this->decoder(i).step(w[i][1], words[i], step + 1);
                ScaleDecoder::four(s[i], scales[i].of_sums[block / 2]);
            }
#pragma unroll
        for (int b = 0; b < Shape::M_TILES; b++) {
            u32 x[4];
            ptx::ldmatrix_x4(x, x_at + 8 * b * Shape::X_PITCH);
#pragma unroll
            for (int i = 0; i < TILES; i++)
                if (SCALES_WEIGHTS) {
                    ptx::mma_m16n8k16<X>(sums[i][b], w[i][0], x[0], x[1]);
                    ptx::mma_m16n8k16<X>(sums[i][b], w[i][1], x[2], x[3]);
                } else {
                    float c[4];
                    ptx::mma_m16n8k16_first<X>(c, w[i][0], x[0], x[1]);
                    if (BLOCK == 16) {
                        apply(sums[i][b], c, s[i], 0);
                        ptx::mma_m16n8k16_first<X>(c, w[i][1], x[2], x[3]);
                    } else {
                        ptx::mma_m16n8k16<X>(c, w[i][1], x[2], x[3]);
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

}  // namespace bs::gemm
