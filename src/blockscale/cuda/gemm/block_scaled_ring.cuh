// A ring of stages that TMA fills with panels of x and w and with their scales, for block-scaled tensor cores.
//
// A stage holds panels of x, panels of w, scales of x, scales of w. A panel has rows of 128 bytes with TMA's 128-byte
// swizzle. Scales are atoms of 512 bytes, 128 rows by four scales: [128 rows][scale group].
#pragma once
#include "gemm/slot_ring.cuh"
#include "generated/block_scaled_arguments.cuh"

namespace bs::gemm {

// Tiles of ragged groups begin where atoms of blocked scales do.
template <class Shape>
using WholeTileOrder = TileOrder<Shape, true>;

template <class Shape>
struct BlockScaledRing : SlotRing<Shape> {
    using Slots = SlotRing<Shape>;
    using Slots::STAGES, Slots::CTAS, Slots::full, Slots::slot_at, Slots::load;
    static constexpr int BARRIERS = 2 * STAGES;

    BS_DEVICE u32 x_at(int slot) const { return slot_at(slot); }
    BS_DEVICE u32 w_at(int slot) const { return x_at(slot) + Shape::X_BYTES; }
    BS_DEVICE u32 x_scale_at(int slot) const { return w_at(slot) + Shape::W_BYTES; }
    BS_DEVICE u32 w_scale_at(int slot) const { return x_scale_at(slot) + 512 * Shape::SCALE_GROUPS; }

    BS_DEVICE void load_x(const typename Shape::Arguments& a, const OutputTile& tile, int stage, int slot, int rank,
                          u32 barrier) const {
        const int row = tile.row + rank * Shape::CTA_ROWS;
#pragma unroll
        for (int panel = 0; panel < Shape::PANELS; panel++)
            load(x_at(slot) + panel * (Shape::CTA_ROWS * 128), a.x_map, barrier,
                 (stage * Shape::PANELS + panel) * 128, row);
        // Batches have atoms of their own; rows of ragged groups lie in one matrix.
        const int atom = Shape::RAGGED ? row / 128 : tile.group * ((a.m + 127) / 128) + (row - tile.first) / 128;
        load(x_scale_at(slot), a.x_scale_map, barrier, 0, stage * Shape::SCALE_GROUPS, atom);
    }

    BS_DEVICE void load_w(const typename Shape::Arguments& a, const OutputTile& tile, int stage, int slot, int rank,
                          u32 barrier) const {
        const int column = tile.n_tile * Shape::TILE_N;
        constexpr int BOXES = Shape::CTA_B_ROWS / Shape::BOX_ROWS;  // of this CTA: gate's and up's, or those of instructions
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            // Of a pair, the even CTA has the first half of the rows: the whole tile of gate where there are two.
            const int branch = !Shape::GATED ? 0 : CTAS == 2 ? rank : box;
            const int row = tile.group * a.n + column + (!Shape::GATED ? Shape::row_of_box(box, rank) : 0);
#pragma unroll
            for (int panel = 0; panel < Shape::PANELS; panel++)
                load(w_at(slot) + panel * (Shape::CTA_B_ROWS * 128) + box * (Shape::BOX_ROWS * 128), a.code_map[branch],
                     barrier, (stage * Shape::PANELS + panel) * 128, row);
        }
        const int atom = tile.group * ((a.n + 127) / 128) + column / 128;
#pragma unroll
        for (int branch = 0; branch < Shape::BRANCHES; branch++) {
            const u32 to = w_scale_at(slot) + branch * (512 * Shape::SCALE_GROUPS);
            if constexpr (!Shape::MULTICAST)
                load(to, a.scale_map[branch], barrier, 0, stage * Shape::SCALE_GROUPS, atom);
            else if (rank == 0)
                ptx::tma::load_pair_multicast(to, a.scale_map[branch], 0, stage * Shape::SCALE_GROUPS, atom, barrier, 3);
        }
    }

    // All that this CTA multiplies, by one thread. What is beyond k or the last row becomes zero, scales too.
    BS_DEVICE void produce(const typename Shape::Arguments& a, const WholeTileOrder<Shape>& order, int rank) const {
        const int stages = (a.k + Shape::TILE_K - 1) / Shape::TILE_K;
        this->fill_all(order, 0, stages, [&](const OutputTile& tile, int stage, int slot) {
            const u32 barrier = this->counted_at(slot);
            if (rank == 0) ptx::mbarrier_arrive_expect_tx(full(slot), CTAS * Shape::STAGE_TX);
            load_x(a, tile, stage, slot, rank, barrier);
            load_w(a, tile, stage, slot, rank, barrier);
        });
    }
};

}  // namespace bs::gemm
