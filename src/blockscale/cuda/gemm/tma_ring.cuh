// A ring of stages that TMA fills with boxes of weights and of x, for warpgroups that multiply by wgmma.
//
// Every k warp has STAGES slots of its own. Each slot has two mbarriers: `full` completes when its bytes have come,
// `read` when all N_WARPS warps have read them. Of the warps at the same k, lane 0 of the first issues the loads of
// weights for all, and lane 0 of the second those of x: issuing a load stalls the warp, and two warps share the stalls.
#pragma once
#include "gemm/warp_coord.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace bs::gemm {

template <class Shape>
struct TmaRing : WarpCoord<Shape> {
    using Coord = WarpCoord<Shape>;
    using Coord::a, Coord::shared, Coord::lane, Coord::n_warp, Coord::k_warp, Coord::tiles;

    static constexpr int STAGES = Shape::STAGES, UNITS = Shape::UNITS, BRANCHES = Shape::BRANCHES;
    static constexpr int SLOTS = Shape::K_WARPS * STAGES;
    static constexpr int CTA_TILES = Shape::N_WARPS * Shape::TILES_PER_WARP;
    static constexpr int BRANCH_TILES = CTA_TILES / BRANCHES;
    static constexpr int PANEL_BYTES = Shape::X_BYTES / UNITS;  // of 64 k

    // A slot, and the parity of the phase that its barriers are in.
    struct Turn {
        int slot = 0;
        u32 parity = 0;

        BS_DEVICE void step_on() {
            if (++slot == STAGES) slot = 0, parity ^= 1;
        }
    };

    u32 barriers;
    Turn turn;

    BS_DEVICE TmaRing(const typename Shape::Arguments& a, u32 shared) : Coord(a, shared) {
        __shared__ u64 memory[2 * SLOTS];
        barriers = ptx::shared_address(memory);
        if (loads_weights()) {
            for (int i = 0; i < STAGES; i++)
                ptx::mbarrier_init(full(i), 2), ptx::mbarrier_init(read(i), Shape::N_WARPS);
            ptx::mbarrier_init_fence();
        }
    }

    // The lane that initialises the barriers may use them at once. The others must synchronise with it first.
    BS_DEVICE bool loads_weights() const { return n_warp == 0 && lane == 0; }
    BS_DEVICE bool loads_x() const { return n_warp == 1 && lane == 0; }

    BS_DEVICE u32 full(int slot) const { return barriers + 8 * (k_warp * STAGES + slot); }
    BS_DEVICE u32 read(int slot) const { return full(slot) + 8 * SLOTS; }
    BS_DEVICE u32 stage_of(int slot) const { return shared + slot * Shape::STAGE_BYTES; }

    // A stage holds x of all k warps, then their codes, then their scales. Tiles of gate come before those of up.
    BS_DEVICE u32 x_at(u32 stage) const { return stage + k_warp * Shape::X_BYTES; }
    BS_DEVICE u32 cta_codes(u32 stage) const {
        return stage + Shape::K_WARPS * Shape::X_BYTES + k_warp * (CTA_TILES * Shape::CODE_BYTES);
    }
    BS_DEVICE u32 cta_scales(u32 stage) const {
        return stage + Shape::K_WARPS * (Shape::X_BYTES + CTA_TILES * Shape::CODE_BYTES) +
               k_warp * (CTA_TILES * Shape::SCALE_BYTES);
    }
    BS_DEVICE int tile_in_stage(int i) const {
        return i % BRANCHES * BRANCH_TILES + n_warp * (Shape::TILES_PER_WARP / BRANCHES) + i / BRANCHES;
    }
    BS_DEVICE u32 codes_at(u32 stage, int i) const {
        return cta_codes(stage) + tile_in_stage(i) * Shape::CODE_BYTES;
    }
    BS_DEVICE u32 scales_at(u32 stage, int i) const {
        return cta_scales(stage) + tile_in_stage(i) * Shape::SCALE_BYTES;
    }

    // Where the scales of the warpgroup stand, one after the other: those of each branch.
    static constexpr int SCALE_RUNS = BRANCHES, RUN_BYTES = 4 * Shape::TILES_PER_WARP / BRANCHES * Shape::SCALE_BYTES;
    BS_DEVICE u32 scale_run(u32 stage, int branch) const {
        return cta_scales(stage) + branch * BRANCH_TILES * Shape::SCALE_BYTES + n_warp / 4 * RUN_BYTES;
    }

    // What is beyond k, the last tile or the last row of x becomes zero.
    BS_DEVICE void load_weights(int slot, int k_tile, int first_tile) const {
        const u32 barrier = full(slot), stage = stage_of(slot);
        ptx::mbarrier_arrive_expect_tx(barrier, CTA_TILES * (Shape::CODE_BYTES + Shape::SCALE_BYTES));
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) {
            ptx::tma::load(cta_codes(stage) + i * (BRANCH_TILES * Shape::CODE_BYTES), a.code_map[i], 0,
                           k_tile * UNITS, first_tile, barrier);
            ptx::tma::load(cta_scales(stage) + i * (BRANCH_TILES * Shape::SCALE_BYTES), a.scale_map[i], 0,
                           k_tile * Shape::TILE_K / (8 * Shape::Format::BLOCK), first_tile, barrier);
        }
    }

    // The tensor map of x describes panels of 64 k where k is a multiple of 64, else rows, which end at k.
    BS_DEVICE void load_x(int slot, int k_tile, int first_row) const {
        const u32 barrier = full(slot), to = x_at(stage_of(slot));
        ptx::mbarrier_arrive_expect_tx(barrier, Shape::X_BYTES);
        if (a.k % 64 == 0) {
            ptx::tma::load(to, a.x_map, 0, first_row, k_tile * UNITS, barrier);
            return;
        }
#pragma unroll
        for (int panel = 0; panel < UNITS; panel++)
            ptx::tma::load(to + panel * PANEL_BYTES, a.x_map, k_tile * Shape::TILE_K + 64 * panel, first_row, barrier);
    }

    // The unit of a k tile after which the slot of the k tile before it is refilled. After the first unit, this warp
    // has read that slot; after the second, the other warps most likely have too. Two stages leave no time for a later
    // load; with more stages it is issued after the last unit, where it stalls no product.
    static constexpr int REFILLED_AFTER = STAGES == 2 ? 1 : UNITS * Shape::TILES_PER_WARP - 1;

    // All k tiles of this warp, from `first` to `end` of its CTA. `meanwhile` runs while the first ones come, and
    // synchronises the CTA unless that has been done. `multiply` takes a stage, a k tile, and what to call when a unit
    // has been issued.
    template <class Meanwhile, class Multiply>
    BS_DEVICE void for_k_tiles(const RowRange& rows, int first_m, int first, int end, const Meanwhile& meanwhile,
                               const Multiply& multiply) {
        const bool for_weights = loads_weights(), for_x = loads_x();
        const int first_tile = rows.group * tiles() + blockIdx.x * BRANCH_TILES;
        const int first_row = rows.begin + first_m;
        int next = min(first + k_warp + STAGES * Shape::K_WARPS, end);  // k tile to load when these have been read
        const auto for_first = [&](const auto& load) {
            Turn ahead = turn;
            for (int k_tile = first + k_warp; k_tile < next; k_tile += Shape::K_WARPS, ahead.step_on())
                load(ahead.slot, k_tile);
        };
        if (for_weights) for_first([&](int slot, int k_tile) { load_weights(slot, k_tile, first_tile); });
        __syncwarp();
        meanwhile();
        if (for_x) {
            ptx::wait_for_prerequisites();
            for_first([&](int slot, int k_tile) { load_x(slot, k_tile, first_row); });
        }
        __syncwarp();
        Turn last = turn;
        u32 read_last = 0;  // none yet
#pragma unroll 1
        for (int k_tile = first + k_warp; k_tile < end; k_tile += Shape::K_WARPS) {
            ptx::mbarrier_wait(full(turn.slot), turn.parity);
            multiply(stage_of(turn.slot), k_tile, [&](int unit) {
                if (unit == 0 && read_last && lane == 0) ptx::mbarrier_arrive(read_last);
                if (unit != REFILLED_AFTER) return;
                if ((for_weights || for_x) && read_last && next < end) {
                    ptx::mbarrier_wait(read_last, last.parity);
                    for_weights ? load_weights(last.slot, next, first_tile) : load_x(last.slot, next, first_row);
                    next += Shape::K_WARPS;
                }
                __syncwarp();
            });
            read_last = read(turn.slot);
            last = turn;
            turn.step_on();
        }
        ptx::wgmma_wait<0>();
        if (read_last && lane == 0) ptx::mbarrier_arrive(read_last);
    }

    // Sums have been stored where the stages are, and TMA writes there next.
    BS_DEVICE void end_turn() const { ptx::tma::fence_after_stores(); }
};

}  // namespace bs::gemm
