// A ring of stages of 64 k that TMA fills with rows of x, which tensor cores read, and with codes and scales of weights,
// which warps read.
//
// x is counted at `full`, where the issuer of the CTA or the pair waits; codes at `coded`, where the warps of this CTA do.
// A stage holds x, then codes, then scales; tiles of gate come before those of up. Scales stand together for eight blocks
// along k, which may be those of several stages: the first of these has them.
#pragma once
#include "gemm/mixed_shape.cuh"
#include "gemm/slot_ring.cuh"

namespace bs::gemm {

template <class Shape>
struct MixedRing : SlotRing<Shape> {
    using Slots = SlotRing<Shape>;
    using Slots::STAGES, Slots::CTAS, Slots::barriers, Slots::full, Slots::slot_at;
    static constexpr int BARRIERS = 3 * STAGES, GROUP = Shape::Format::UNITS_PER_GROUP;

    BS_DEVICE u32 coded(int slot) const { return barriers + 8 * (2 * STAGES + slot); }
    static BS_DEVICE u32 codes_in(u32 stage) { return stage + Shape::X_BYTES; }
    static BS_DEVICE u32 scales_in(u32 stage) { return codes_in(stage) + Shape::CTA_TILES * Shape::CODE_BYTES; }

    BS_DEVICE void initialise() const {
        Slots::initialise();
        for (int i = 0; i < STAGES; i++) ptx::mbarrier_init(coded(i), 1);
    }

    // What is beyond k, the last tile of w or the last row of x becomes zero.
    BS_DEVICE void load_weights(const typename Shape::Arguments& a, const OutputTile& tile, int stage, int slot) const {
        const u32 barrier = coded(slot), at = slot_at(slot);
        const bool has_scales = stage % GROUP == 0;
        ptx::mbarrier_arrive_expect_tx(barrier,
                                       Shape::CTA_TILES * (Shape::CODE_BYTES + (has_scales ? Shape::SCALE_BYTES : 0)));
        const int first_tile = tile.group * ((a.n + 15) / 16) + tile.n_tile * Shape::BRANCH_TILES;
#pragma unroll
        for (int i = 0; i < Shape::BRANCHES; i++) {
            const int before = i * Shape::BRANCH_TILES;
            ptx::tma::load_cta(codes_in(at) + before * Shape::CODE_BYTES, a.code_map[i], 0, stage, first_tile, barrier);
            if (has_scales)
                ptx::tma::load_cta(scales_in(at) + before * Shape::SCALE_BYTES, a.scale_map[i], 0, stage / GROUP,
                                   first_tile, barrier);
        }
    }

    // All that this CTA multiplies, by one thread.
    BS_DEVICE void produce(const typename Shape::Arguments& a, const TileOrder<Shape>& order, int rank) const {
        const int stages = (a.k + Shape::TILE_K - 1) / Shape::TILE_K;
        this->fill_all(order, rank, stages, [&](const OutputTile& tile, int stage, int slot) {
            if (rank == 0) ptx::mbarrier_arrive_expect_tx(full(slot), CTAS * Shape::X_BYTES);
            this->load(slot_at(slot), a.x_map, this->counted_at(slot), stage * Shape::TILE_K,
                       tile.row + rank * Shape::CTA_X_ROWS);
            load_weights(a, tile, stage, slot);
        });
    }
};

}  // namespace bs::gemm
