// The mainloop of a tiled GEMM: warpgroups decode weights into registers, and wgmma multiplies them by x in shared
// memory.
//
// A unit is the k tile of one tile of 16 rows of w: four products. While the tensor cores multiply one unit, the next is
// decoded. Turns of some k tiles are unrolled: what is beyond k is zero.
//
// Tried on an H200, and slower by 1 to 4%: codes and scales loaded one unit ahead; a third set of registers, so that two
// units queue up; decoding a quarter of the next unit between the products of this one, which the compiler's scheduler
// undoes in part.
#pragma once
#include "gemm/stage_ring.cuh"
#include "gemm/transposed_tiles.cuh"
#include "ptx/wgmma.cuh"

namespace bs::gemm {

// The tiles of a warp, by which side of the weights is multiplied.
template <class Shape, bool TRANSPOSED = Shape::TRANSPOSED>
struct TilesOf {
    using Type = WarpTiles<Shape, ReadRing<Shape>>;
};
template <class Shape>
struct TilesOf<Shape, true> {
    using Type = TransposedTiles<Shape, ReadRing<Shape>>;
};

template <class Shape>
struct TiledMainloop : TilesOf<Shape>::Type {
    using Tiles = typename TilesOf<Shape>::Type;
    using Tiles::Tiles, Tiles::sums, Tiles::lane, Tiles::slot, Tiles::parity, Tiles::TILES;
    using X = typename Shape::X;

    static constexpr int TURN = Shape::TURN, GROUP = Shape::Format::UNITS_PER_GROUP;
    static constexpr int UNITS = TURN * TILES;  // of a turn
    // Those of which scales are decoded together.
    static constexpr int SCALED = (TURN < Tiles::SCALED_UNITS ? TURN : Tiles::SCALED_UNITS) * TILES;

    u32 weights[2][4][4];  // of the unit that is multiplied, and of the next
    int last_slot = -1;    // whose products may still be under way
    int first_unit = 0;    // of the turn, among those whose scales stand together

    // Units of a turn, from U on.
    template <int U>
    BS_DEVICE void run_units() {
        const u32 stage = this->stage_of(slot);
        ptx::mbarrier_wait(this->full(slot), parity);
        this->with_scales(stage, [&](auto lifted) { run_scaled<U, decltype(lifted)::VALUE>(stage); });
        if constexpr (U + SCALED < UNITS) run_units<U + SCALED>();
    }

    // Unit U, whose stage is there, and those after it with the same scales.
    template <int U, bool LIFTED>
    BS_DEVICE void run_scaled(u32 stage) {
        constexpr int tile = U % TILES, k_tile = U / TILES;
        const u32 x = ptx::panel_word(__shfl_sync(~0u, stage, 0));
        u32(&w)[4][4] = weights[U % 2];
        this->load_unit(w, stage, tile, first_unit + k_tile, LIFTED);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
            ptx::Wgmma<X, Shape::TILE_M>::add(sums[tile], w[step], ptx::panel_descriptor(x + step * ptx::NEXT_K16));
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();  // the unit before is done
        if (tile == 0) release_last();
        if (tile == TILES - 1) {
            last_slot = slot;
            this->step_on();
        }
        if constexpr ((U + 1) % SCALED > 0) {
            const u32 next = this->stage_of(slot);
            if (tile == TILES - 1) ptx::mbarrier_wait(this->full(slot), parity);
            run_scaled<U + 1, LIFTED>(next);
        }
    }

    BS_DEVICE void release_last() {
        if (last_slot >= 0 && lane == 0) this->release(last_slot);
    }

    BS_DEVICE void wait_for_stage() const { ptx::mbarrier_wait(this->full(slot), parity); }

    // Turns of a tile; `meanwhile` runs while the last products do.
    template <class Meanwhile>
    BS_DEVICE void run(int first, int end, const Meanwhile& meanwhile) {
        this->clear();
#pragma unroll 1
        for (int turn = first; turn < end; turn++) {
            if constexpr (TURN < GROUP) first_unit = turn * TURN % GROUP;
            run_units<0>();
        }
        meanwhile();
        ptx::wgmma_wait<0>();
        release_last();
        last_slot = -1;
    }
};

}  // namespace bs::gemm
