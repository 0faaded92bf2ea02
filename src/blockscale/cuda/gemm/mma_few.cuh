// The mainloop for up to 4 rows of x by mma.sync: accumulator columns that would be idle hold other blocks of k.
#pragma once
#include "gemm/cp_async_ring.cuh"
#include "gemm/warp_tiles.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace bs::gemm {

template <class Shape>
struct MmaFewMainloop : WarpTiles<Shape, CpAsyncRing<Shape>> {
    using Tiles = WarpTiles<Shape, CpAsyncRing<Shape>>;
    using Tiles::Tiles, Tiles::lane, Tiles::sums, Tiles::TILES, Tiles::BITS, Tiles::BLOCK;
    using X = typename Shape::X;
    using ScaleDecoder = decode::ScaleDecoder<Shape::Format::SCALE>;

    static constexpr int TILE_M = Shape::TILE_M, SUMS = Shape::SUMS, ACCUMULATORS = Shape::ACCUMULATORS;
    static constexpr int PART = 8 * BLOCK;  // k of a scale group, whose eight blocks stand side by side
    static constexpr int UNROLL = Shape::REGISTERS < 128 ? 1 : Shape::TILE_K / PART;

    // A lane applies the scales of its columns: those in its own word of the scale group, or in the words of 2 or 4
    // lanes.
    static constexpr int SCALE_WORDS = TILE_M == 4 ? 2 : 1;

    BS_DEVICE void load_scales(u32 (&words)[SCALE_WORDS], u32 from) const {
        from += 16 * (lane / 4) + 4 * (lane % 4 / SCALE_WORDS * SCALE_WORDS);
        ptx::load_shared(words, from);
    }

    template <class Meanwhile>
    BS_DEVICE void run(const RowRange& rows, int first_m, int first, int end, const Meanwhile& meanwhile) {
        this->clear();
        this->for_k_tiles(rows, first_m, first, end, meanwhile, [&](u32 stage, int) { multiply(stage); });
        gather();
    }

    BS_DEVICE void multiply(u32 stage) {
        const u32 x_at = this->x_address(stage, lane % 8 % TILE_M), zeros = this->shared - Shape::ZERO_BYTES;
        // The block whose columns this lane gives the address of; two steps of one ldmatrix are two blocks of 16.
        const int column = lane % 8 / TILE_M;
        const int named = TILE_M == 1 && BLOCK == 16 ? column - lane / 16 : column;
#pragma unroll UNROLL
        for (int part = 0; part < Shape::TILE_K / PART; part++) {
            u32 scale_words[TILES][SCALE_WORDS], words[TILES][BITS];
            float c[ACCUMULATORS][TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; i++) load_scales(scale_words[i], this->scales_at(stage, i) + 128 * part);
#pragma unroll
            for (int step = 0; step < PART / 16; step += 2) {
                const int at = part * (PART / 16) + step;  // in the k tile
                if (step % 4 == 0)
#pragma unroll
                    for (int i = 0; i < TILES; i++)
                        this->load_codes(words[i], this->codes_at(stage, i) + at / 4 * Shape::Format::UNIT_BYTES);
                u32 x[4];
                ptx::ldmatrix_x4(x, (named == 16 * step / BLOCK / ACCUMULATORS ? x_at : zeros) + 32 * at);
#pragma unroll
                for (int i = 0; i < TILES; i++) add(c, i, words[i], x, step, scale_words[i]);
            }
        }
    }

    // Two steps whose blocks share an accumulator with others; scaled when the eight are complete.
    BS_DEVICE void add(float (&c)[ACCUMULATORS][TILES][4], int i, const u32 (&words)[BITS], const u32 (&x)[4],
                       int step, const u32 (&scale_words)[SCALE_WORDS]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 w[4];
            this->decoder(i).step(w, words, (step + half) % 4);
            const int block = 16 * (step + half) / BLOCK, set = block % ACCUMULATORS;
            const bool first = (step + half) % (BLOCK / 16) == 0;
            const bool last = (step + half + 1) % (BLOCK / 16) == 0;
            if (first && block < ACCUMULATORS)
                ptx::mma_m16n8k16_first<X>(c[set][i], w, x[2 * half], x[2 * half + 1]);
            else
                ptx::mma_m16n8k16<X>(c[set][i], w, x[2 * half], x[2 * half + 1]);
            if (last && block >= 8 - ACCUMULATORS) {
                float s[4];
                ScaleDecoder::four(s, scale_words[set / 2]);
                apply(sums[i][0], c[set][i], s, set % 2);
            }
        }
    }

    // sums += scale * c, for the blocks whose sums stand in c.
    BS_DEVICE void apply(float (&sum)[SUMS], const float (&c)[4], const float (&s)[4], int odd) const {
        if constexpr (TILE_M == 1) {  // the lane's two columns are blocks 2 t and 2 t + 1
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
                for (int step = 2; step >= (TILE_M == 4 ? 2 : 1); step /= 2)
                    sums[i][0][j] += __shfl_xor_sync(~0u, sums[i][0][j], step);
    }
};

}  // namespace bs::gemm
