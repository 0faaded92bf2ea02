// Accumulators in TMEM, which the issuer fills and the epilogue empties in turn.
//
// Two accumulators of 256 columns and the scales need more than the 512 columns there are, so the end of the first and the
// beginning of the second share SHARED_COLUMNS. Tile t uses accumulator t % 2. Its products may begin when tile t - 2 has
// been read out of the accumulator's own columns, and tile t - 1 out of the shared ones, which the epilogue therefore
// reads first.
//
// Epilogue warps take tiles in order, so that `shared` of tile t - 1 implies `own` of tile t - 2: without shared columns,
// `own` alone holds the issuer back.
//
// One accumulator whose columns two instructions fill is released in these two parts: `own` says that the first one's
// columns have been read, `second` the others.
//
// mbarriers: `full` of each accumulator, by tcgen05.commit; `own` of each, and `shared` or `second`, one arrival of each
// epilogue warp, of both CTAs of a pair at the even one.
#pragma once
#include "gemm/ring_turn.cuh"
#include "ptx/tcgen05.cuh"

namespace bs::gemm {

template <class Shape>
struct Accumulators {
    static constexpr int COUNT = Shape::ACCUMULATORS, BARRIERS = 5, WARPS = 4 * Shape::CTAS;
    static constexpr bool SHARES = COUNT == 2 && Shape::SHARED_COLUMNS > 0, PARTS = Shape::SECOND_N > 0;
    static_assert(!PARTS || COUNT == 1, "");

    u32 barriers;
    u32 tmem;

    BS_DEVICE u32 full(int i) const { return barriers + 8 * i; }
    BS_DEVICE u32 own(int i) const { return barriers + 8 * (2 + i); }
    BS_DEVICE u32 shared() const { return barriers + 8 * 4; }
    BS_DEVICE u32 second() const { return barriers + 8 * 4; }

    BS_DEVICE void initialise() const {
        for (int i = 0; i < COUNT; i++) ptx::mbarrier_init(full(i), 1), ptx::mbarrier_init(own(i), WARPS);
        if constexpr (SHARES) ptx::mbarrier_init(shared(), WARPS);
        if constexpr (PARTS) ptx::mbarrier_init(second(), WARPS);
    }

    BS_DEVICE u32 columns(int i) const { return tmem + i * Shape::SECOND; }

    // By one lane of each epilogue warp, after the warp's loads have completed and it has fenced.
    static BS_DEVICE void arrive(u32 barrier) {
        if constexpr (Shape::CTAS == 1)
            ptx::mbarrier_arrive(barrier);
        else
            ptx::mbarrier_arrive_at(barrier, 0);
    }
};

// Which accumulator a tile uses: each role counts its tiles.
template <class Shape>
struct AccumulatorTurn : RingTurn<Shape::ACCUMULATORS> {
    u32 tile_parity = 0;  // of columns that every tile uses: shared ones, or the second part

    BS_DEVICE void step_on() {
        RingTurn<Shape::ACCUMULATORS>::step_on();
        tile_parity ^= 1;
    }
};

}  // namespace bs::gemm
