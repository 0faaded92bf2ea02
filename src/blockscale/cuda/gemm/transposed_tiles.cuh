// The tiles of a warp where products sum over rows of w:
//
//     out[m, column] = sum over rows of x[m, row] * w[row, column] * scale[row, column / block]
//
// 64 columns of w are the rows of the A operand. A unit of the layout has 16 rows of w and four steps of 16 columns: warp i
// of a warpgroup takes step i of four units, one below the other in w, which are the four products of a stage. A step is
// decoded and scaled as it stands, with a row of w in each lane; then its four 8 x 8 matrices are transposed, and the two
// off the diagonal change places.
#pragma once
#include "gemm/tile_order.cuh"
#include "gemm/warp_tiles.cuh"
#include "ptx/movmatrix.cuh"

namespace bs::gemm {

template <class Shape, class Ring>
struct TransposedTiles : WarpTiles<Shape, Ring> {
    using Tiles = WarpTiles<Shape, Ring>;
    using Tiles::Tiles, Tiles::lane, Tiles::n_warp, Tiles::decoded;
    using typename Tiles::X, typename Tiles::Format, typename Tiles::Lift;

    static constexpr int TILES = Tiles::TILES, BITS = Tiles::BITS, BLOCK = Tiles::BLOCK;
    static constexpr int SCALED_UNITS = 1;  // scales are decoded for each stage
    // Words of a step, where every step has its own and all are alike; else 0.
    static constexpr int STEP_WORDS = Format::ELEMENT != decode::TABLE && BITS % 4 == 0 ? BITS / 4 : 0;

    int first_column;  // of the CTA, counted from the first column of its first scale group

    BS_DEVICE void begin(const OutputTile& tile) {
        first_column = tile.n_tile * Shape::TILE_N % Shape::SCALE_GROUP_K;
    }

    // Of tiles of 64 columns, those of this CTA.
    BS_DEVICE int column_tile(int i) const { return n_warp / 4 * TILES + i; }
    BS_DEVICE int step() const { return __shfl_sync(~0u, n_warp % 4, 0); }  // the same for the warp, as the compiler sees

    // Each row has one scale in a step. A lane decodes those of rows g and g + 8 of a unit, for four lanes that need them
    // twice in a register: 8 bytes.
    template <class Units>
    BS_DEVICE void with_scales(u32 stage, const Units& units) const {
        __syncwarp();  // the last ones are read
        u32 codes[TILES], exceeding = 0;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int column = first_column + 64 * column_tile(i) + 16 * step();
            const int group = column / Shape::SCALE_GROUP_K, block = column % Shape::SCALE_GROUP_K / BLOCK;
            const u32 from = Ring::scales_in(stage) + 128 * (lane / 8 * Shape::SCALE_GROUPS + group) + 16 * (lane % 8);
            u32 word[1];  // two blocks of row g, then of row g + 8
            ptx::load_shared(word, from + 4 * (block / 2));
            codes[i] = word[0] >> 8 * (block % 2);
            if constexpr (Lift::MAY_EXCEED && BLOCK == 16) {  // steps of the four warps are in two words
                u32 both[2];
                ptx::load_shared(both, from + 8 * (block / 4));
                word[0] = both[0] | both[1];
            }
            exceeding |= Lift::exceeding(word[0]);
        }
        const auto store = [&](auto lifted) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                u32 scales[4];
                Lift::template scales<decltype(lifted)::VALUE>(scales, codes[i]);
                ptx::store_shared(decoded() + 256 * i + 8 * lane, scales[0], scales[2]);
            }
        };
        by_lift<Lift>(exceeding, store, units);
    }

    template <int STEP>
    BS_DEVICE void decode_units(u32 (&w)[4][4], u32 codes) const {
#pragma unroll
        for (int unit = 0; unit < 4; unit++) {
            u32 words[BITS];
            this->load_codes(words, codes + unit * Shape::UNITS_BELOW);
            Tiles::unscaled(this->decoder(0), w[unit], words, STEP);
        }
    }

    BS_DEVICE void decode_steps(u32 (&w)[4][4], u32 codes) const {
        if constexpr (STEP_WORDS > 0) {
            const u32 from = codes + 4 * BITS * lane + 4 * STEP_WORDS * step();
#pragma unroll
            for (int unit = 0; unit < 4; unit++) {
                u32 words[STEP_WORDS];
                ptx::load_shared(words, from + unit * Shape::UNITS_BELOW);
                Tiles::unscaled(this->decoder(0), w[unit], words, 0);
            }
        } else {
            switch (step()) {
                case 0: return decode_units<0>(w, codes);
                case 1: return decode_units<1>(w, codes);
                case 2: return decode_units<2>(w, codes);
                default: return decode_units<3>(w, codes);
            }
        }
    }

    static BS_DEVICE void transpose(u32 (&w)[4]) {
        const u32 above = ptx::transposed(w[1]);
        w[0] = ptx::transposed(w[0]), w[1] = ptx::transposed(w[2]), w[2] = above, w[3] = ptx::transposed(w[3]);
    }

    // The weights of four products.
    BS_DEVICE void load_unit(u32 (&w)[4][4], u32 stage, int tile, int, bool lift) const {
        u32 scales[4][2];
#pragma unroll
        for (int unit = 0; unit < 4; unit++)
            ptx::load_shared(scales[unit], decoded() + 256 * tile + 64 * unit + 8 * (lane / 4));
        decode_steps(w, Ring::codes_in(stage) + column_tile(tile) * Format::UNIT_BYTES);
        Tiles::template scale_steps<4>(w, 0, scales, lift);
#pragma unroll
        for (int unit = 0; unit < 4; unit++) transpose(w[unit]);
    }
};

}  // namespace bs::gemm
