// The mainloop of warpgroups: warps decode weights into registers, and wgmma multiplies them by x in shared memory.
#pragma once
#include "gemm/tma_ring.cuh"
#include "gemm/warp_tiles.cuh"

namespace bs::gemm {

template <class Shape>
struct WgmmaMainloop : WarpTiles<Shape, TmaRing<Shape>> {
    using Tiles = WarpTiles<Shape, TmaRing<Shape>>;
    using Tiles::Tiles, Tiles::sums, Tiles::TILES, Tiles::BITS, Tiles::PANEL_BYTES;
    using X = typename Shape::X;

    // The codes and scales of a tile and a unit; loaded one unit ahead where registers allow it.
    static constexpr bool AHEAD = Shape::REGISTERS > 128 || TILES * Shape::TILE_M / 2 + 4 * BITS < 48;
    struct Coded {
        u32 words[BITS], scales[4][2];
    };

    BS_DEVICE void load(Coded& coded, u32 stage, int k_tile, int i) const {
        const int part = i / TILES, tile = i % TILES;
        this->load_codes(coded.words, this->codes_at(stage, tile) + part * Shape::Format::UNIT_BYTES);
        this->load_decoded(coded.scales, tile, this->unit_of(k_tile, part));
    }

    // While the tensor cores multiply a unit, the next one is decoded. `issued(i)`: the products of the i-th unit have
    // been issued, and those of units before it are done.
    template <class Issued>
    BS_DEVICE void multiply(u32 stage, int k_tile, const Issued& issued) {
        const u32 x = ptx::panel_word(__shfl_sync(~0u, this->x_at(stage), 0));  // the same in all lanes
        this->with_scales(stage, [&](auto lifted) {
            multiply_scaled<decltype(lifted)::VALUE>(stage, k_tile, x, issued);
        });
    }

    template <bool LIFTED, class Issued>
    BS_DEVICE void multiply_scaled(u32 stage, int k_tile, u32 x, const Issued& issued) {
        Coded coded[2];
        load(coded[0], stage, k_tile, 0);
#pragma unroll
        for (int i = 0; i < Shape::UNITS * TILES; i++) {
            const int part = i / TILES, tile = i % TILES;
            if (AHEAD ? i + 1 < Shape::UNITS * TILES : i > 0)
                load(coded[(i + AHEAD) % 2], stage, k_tile, i + AHEAD);
            u32 w[4][4];
            this->scaled_steps(w, coded[i % 2].words, tile, 0, coded[i % 2].scales, LIFTED);
            ptx::wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                ptx::Wgmma<X, Shape::TILE_M>::add(
                    sums[tile], w[step],
                    ptx::panel_descriptor(x + part * (PANEL_BYTES >> 4) + step * ptx::NEXT_K16));
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
            issued(i);
        }
    }

    template <class Meanwhile>
    BS_DEVICE void run(const RowRange& rows, int first_m, int first, int end, const Meanwhile& meanwhile) {
        this->clear();
        this->for_k_tiles(rows, first_m, first, end, meanwhile, [&](u32 stage, int k_tile, const auto& issued) {
            multiply(stage, k_tile, issued);
        });
    }
};

}  // namespace bs::gemm
