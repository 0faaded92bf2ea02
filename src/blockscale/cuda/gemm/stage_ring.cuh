// A ring of stages of 64 k that two warps fill by TMA and warpgroups read.
//
// Each stage has two mbarriers: `full` completes when its bytes have come, `empty` when all warps that read it are done.
// A thread of one warp issues the copies of weights, one of the other those of x: issuing takes time, and weights need not
// wait for what x waits for.
// In a cluster every CTA loads its share of the rows of x and sends it to all CTAs; so a stage is empty when the warps
// of all CTAs have read theirs.
#pragma once
#include "gemm/work.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pdl.cuh"
#include "ptx/registers.cuh"
#include "ptx/tma.cuh"

namespace bs::gemm {

template <class Shape>
struct StageRing {
    static constexpr int STAGES = Shape::STAGES, CLUSTER = Shape::CLUSTER, BRANCHES = Shape::BRANCHES;
    static constexpr int BRANCH_TILES = Shape::BRANCH_TILES;
    static constexpr int TURN = Shape::TURN;

    u32 shared;    // address of the stages
    u32 barriers;  // of `full`, then of `empty`
    int slot = 0;
    u32 parity = 0;  // of the phase that the barriers of the slot are in

    BS_DEVICE StageRing(u32 shared, u32 barriers) : shared(shared), barriers(barriers) {}

    BS_DEVICE void step_on() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }

    BS_DEVICE u32 full(int slot) const { return barriers + 8 * slot; }
    BS_DEVICE u32 empty(int slot) const { return barriers + 8 * (STAGES + slot); }

    // A stage holds x, then codes, then scales. Tiles of gate come before those of up.
    BS_DEVICE u32 stage_of(int slot) const { return shared + slot * Shape::STAGE_BYTES; }
    static BS_DEVICE u32 codes_in(u32 stage) { return stage + Shape::X_BYTES; }
    static BS_DEVICE u32 scales_in(u32 stage) { return codes_in(stage) + Shape::CTA_TILES * Shape::CODE_BYTES; }

    // Arrivals at barrier i: of the two threads that bring operands, or of all warps that read them.
    static BS_DEVICE int arrivals(int i) { return i < STAGES ? 2 : Shape::N_WARPS * CLUSTER; }

    // By one lane of each warp that read the slot.
    BS_DEVICE void release(int slot) const { arrive_in_cluster(empty(slot)); }

    // At the barrier that each CTA has there.
    static BS_DEVICE void arrive_in_cluster(u32 barrier) {
        if constexpr (CLUSTER == 1)
            ptx::mbarrier_arrive(barrier);
        else
#pragma unroll
            for (int rank = 0; rank < CLUSTER; rank++) ptx::mbarrier_arrive_at(barrier, rank);
    }

    // What is beyond k, the last tile of w or the last row of x becomes zero.
    BS_DEVICE void load_weights(const typename Shape::Arguments& a, const OutputTile& tile, int k_tile) const {
        const u32 barrier = full(slot), stage = stage_of(slot);
        ptx::mbarrier_arrive_expect_tx(barrier, Shape::CTA_TILES * Shape::CODE_BYTES + Shape::SCALE_TILES * Shape::SCALE_BYTES);
        if constexpr (Shape::TRANSPOSED) return load_transposed(a, tile, k_tile, barrier, stage);
        const int first_tile = tile.group * ((a.n + 15) / 16) + tile.n_tile * BRANCH_TILES;
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) {
            ptx::tma::load(codes_in(stage) + i * (BRANCH_TILES * Shape::CODE_BYTES), a.code_map[i], 0, k_tile,
                           first_tile, barrier);
            ptx::tma::load(scales_in(stage) + i * (BRANCH_TILES * Shape::SCALE_BYTES), a.scale_map[i], 0,
                           64 * k_tile / (8 * Shape::Format::BLOCK), first_tile, barrier);
        }
    }

    // Rows of w are counted within a group: what is beyond its last one becomes zero.
    static BS_DEVICE void load_transposed(const typename Shape::Arguments& a, const OutputTile& tile, int k_tile, u32 barrier,
                                          u32 stage) {
        ptx::tma::load(codes_in(stage), a.code_map, 0, tile.n_tile * Shape::UNITS_ACROSS, 4 * k_tile, tile.group, barrier);
        ptx::tma::load(scales_in(stage), a.scale_map, 0, tile.n_tile * Shape::TILE_N / Shape::SCALE_GROUP_K, 4 * k_tile,
                       tile.group, barrier);
    }

    BS_DEVICE void load_x(const typename Shape::Arguments& a, const OutputTile& tile, int k_tile, int rank) const {
        constexpr int ROWS = Shape::TILE_M / CLUSTER;  // that this CTA loads
        const u32 to = stage_of(slot) + rank * ROWS * 128;
        ptx::mbarrier_arrive_expect_tx(full(slot), Shape::X_BYTES);
        if constexpr (CLUSTER == 1)
            ptx::tma::load(to, a.x_map, 64 * k_tile, tile.row, full(slot));
        else
            ptx::tma::load_multicast(to, a.x_map, 64 * k_tile, tile.row + rank * ROWS, full(slot), (1 << CLUSTER) - 1);
    }

    // Calls `load` for every stage that this CTA multiplies, when the stage is empty: with the tile, the k tile, and whether it
    // is the first one of a tile or of a part of it. Calls `behind` behind the last one. Before the first one, `wait`: where its
    // tile is takes 0.4 us to find out, which are over by then.
    template <class Wait, class Load, class Behind>
    BS_DEVICE void fill(const TileOrder<Shape>& order, int rank, const Wait& wait, const Load& load, const Behind& behind) {
        Work<Shape> work(order);
        Segment segment;
        OutputTile tile{};
        bool more = work.take(segment);
        if (more) tile = order.at(segment.tile, rank);
        wait();
        while (more) {
#pragma unroll 1
            for (int k_tile = segment.first * TURN; k_tile < segment.end * TURN; k_tile++) {
                ptx::mbarrier_wait(empty(slot), parity ^ 1);  // the first time at once
                load(tile, k_tile, k_tile == segment.first * TURN);
                step_on();
            }
            behind(work, segment);
            more = work.take(segment);
            if (more) tile = order.at(segment.tile, rank);
        }
    }
};

// The ring as a warp that multiplies sees it.
template <class Shape>
struct ReadRing : StageRing<Shape> {
    using Ring = StageRing<Shape>;
    static constexpr int k_warp = 0;

    int lane, n_warp;

    BS_DEVICE ReadRing(const Ring& ring) : Ring(ring), lane(threadIdx.x % 32), n_warp(threadIdx.x / 32) {
        // Or the mainloop computes them in each turn, which pays where sums leave no register for them.
        if constexpr (Shape::TILES_PER_WARP * Shape::TILE_M < 256) ptx::hold(lane), ptx::hold(n_warp);
    }

    // A warpgroup has 64 neighbouring rows of w in a product: 16 of each warp.
    BS_DEVICE int tile_in_stage(int i) const {
        return (n_warp / 4 * Shape::TILES_PER_WARP + i) * 4 + n_warp % 4;
    }
    BS_DEVICE u32 codes_at(u32 stage, int i) const {
        return Ring::codes_in(stage) + tile_in_stage(i) * Shape::CODE_BYTES;
    }
    BS_DEVICE u32 scales_at(u32 stage, int i) const {
        return Ring::scales_in(stage) + tile_in_stage(i) * Shape::SCALE_BYTES;
    }

    // Where the scales of the warpgroup stand, one after the other.
    static constexpr int SCALE_RUNS = 1, RUN_BYTES = 4 * Shape::TILES_PER_WARP * Shape::SCALE_BYTES;
    BS_DEVICE u32 scale_run(u32 stage, int) const { return Ring::scales_in(stage) + n_warp / 4 * RUN_BYTES; }
};

}  // namespace bs::gemm
