// How chunks come to warps that multiply together: boxes of weights and of x, copied by the hardware into a
// ring of stages. Of the warps that are at the same k, a lane of the first asks for the weights of all, and one of
// the second for x: asking takes time, in which the others would have to wait for a single one. Each slot of the ring
// has a barrier that opens when it is full, and one that opens when it has been read.
#pragma once
#include "ptx/tma.cuh"
#include "gemm/warp_coord.cuh"
#include "ptx/wgmma.cuh"

struct Ring : Place {
    static constexpr int SLOTS = K_WARPS * STAGES;
    static constexpr int BLOCK_TILES = ROW_WARPS * TILES;
    static constexpr int BRANCH_TILES = BLOCK_TILES / BRANCHES;

    // A slot, and whether its barriers open for an even or an odd time.
    struct Turn {
        int slot = 0;
        u32 parity = 0;

        BS_DEVICE void step_on() {
            if (++slot == STAGES) slot = 0, parity ^= 1;
        }
    };

    u32 barriers;
    Turn turn;

    BS_DEVICE Ring(const Arguments& a, u32 shared) : Place(a, shared) {
        __shared__ u64 memory[2 * SLOTS];
        barriers = shared_address(memory);
        if (asks_for_weights()) {
            for (int i = 0; i < STAGES; i++) make_barrier(full(i), 2), make_barrier(read(i), ROW_WARPS);
            show_barriers();
        }
    }

    // It makes the barriers, and can use them at once. The others must meet it first.
    BS_DEVICE bool asks_for_weights() const { return row_warp == 0 && lane == 0; }
    BS_DEVICE bool asks_for_x() const { return row_warp == 1 && lane == 0; }

    BS_DEVICE u32 full(int slot) const { return barriers + 8 * (k_warp * STAGES + slot); }
    BS_DEVICE u32 read(int slot) const { return full(slot) + 8 * SLOTS; }
    BS_DEVICE u32 stage_of(int slot) const { return shared + slot * STAGE_BYTES; }

    // In a stage, what belongs together of all k warps: x, then codes, then scales. Tiles of gate come
    // before those of up.
    BS_DEVICE u32 x_at(u32 stage) const { return stage + k_warp * X_BYTES; }
    BS_DEVICE u32 block_codes(u32 stage) const {
        return stage + K_WARPS * X_BYTES + k_warp * (BLOCK_TILES * CODE_BYTES);
    }
    BS_DEVICE u32 block_scales(u32 stage) const {
        return stage + K_WARPS * (X_BYTES + BLOCK_TILES * CODE_BYTES) + k_warp * (BLOCK_TILES * SCALE_BYTES);
    }
    BS_DEVICE int place_of_tile(int i) const {
        return i % BRANCHES * BRANCH_TILES + row_warp * (TILES / BRANCHES) + i / BRANCHES;
    }
    BS_DEVICE u32 codes_at(u32 stage, int i) const {
        return block_codes(stage) + place_of_tile(i) * CODE_BYTES;
    }
    BS_DEVICE u32 scales_at(u32 stage, int i) const {
        return block_scales(stage) + place_of_tile(i) * SCALE_BYTES;
    }

    // What is beyond k, the last tile or the last row of x becomes zero.
    BS_DEVICE void fetch_weights(int slot, int chunk, int first_tile) const {
        const u32 barrier = full(slot), stage = stage_of(slot);
        arrive_and_expect(barrier, BLOCK_TILES * (CODE_BYTES + SCALE_BYTES));
#pragma unroll
        for (int i = 0; i < BRANCHES; i++) {
            copy_box(block_codes(stage) + i * (BRANCH_TILES * CODE_BYTES), a.code_map[i], 0, chunk * UNITS,
                     first_tile, barrier);
            copy_box(block_scales(stage) + i * (BRANCH_TILES * SCALE_BYTES), a.scale_map[i], 0,
                     chunk * CHUNK / (8 * BLOCK), first_tile, barrier);
        }
    }

    // The hardware is told of panels where k is a multiple of 64, and of rows else: they end at k.
    BS_DEVICE void fetch_x(int slot, int chunk, int first_row) const {
        const u32 barrier = full(slot), to = x_at(stage_of(slot));
        arrive_and_expect(barrier, X_BYTES);
        if (a.k % 64 == 0) {
            copy_box(to, a.x_map, 0, first_row, chunk * UNITS, barrier);
            return;
        }
#pragma unroll
        for (int panel = 0; panel < UNITS; panel++)
            copy_box(to + panel * PANEL_BYTES, a.x_map, chunk * CHUNK + 64 * panel, first_row, barrier);
    }

    // The unit of a chunk after which the slot of the chunk before it is filled again. After the first, that
    // chunk has been read; after the second, other warps have most likely come as far. Two stages leave no time
    // for a copy that starts later; with more of them, it is better out of the way of the units.
    static constexpr int REFILLED_AFTER = STAGES == 2 ? 1 : UNITS * TILES - 1;

    // All chunks of this warp, from `first` to `end` of its block; `meanwhile` is done while the first come: then
    // the block meets, if it has not yet. `multiply` takes a stage, a chunk, and what to call when a unit of it has
    // been handed over.
    template <class Meanwhile, class Multiply>
    BS_DEVICE void for_chunks(const Rows& rows, int first_column, int first, int end,
                              const Meanwhile& meanwhile, const Multiply& multiply) {
        const bool for_weights = asks_for_weights(), for_x = asks_for_x();
        const int first_tile = rows.group * tiles() + blockIdx.x * BRANCH_TILES;
        const int first_row = rows.begin + first_column;
        int next = min(first + k_warp + STAGES * K_WARPS, end);  // chunk to fetch when these have been read
        const auto for_first = [&](const auto& fetch) {
            Turn ahead = turn;
            for (int chunk = first + k_warp; chunk < next; chunk += K_WARPS, ahead.step_on())
                fetch(ahead.slot, chunk);
        };
        if (for_weights) for_first([&](int slot, int chunk) { fetch_weights(slot, chunk, first_tile); });
        __syncwarp();
        meanwhile();
        if (for_x) {
            wait_for_previous();
            for_first([&](int slot, int chunk) { fetch_x(slot, chunk, first_row); });
        }
        __syncwarp();
        Turn last = turn;
        u32 read_last = 0;  // none yet
#pragma unroll 1
        for (int chunk = first + k_warp; chunk < end; chunk += K_WARPS) {
            wait_at(full(turn.slot), turn.parity);
            multiply(stage_of(turn.slot), chunk, [&](int unit) {
                if (unit == 0 && read_last && lane == 0) arrive(read_last);
                if (unit != REFILLED_AFTER) return;
                if ((for_weights || for_x) && read_last && next < end) {
                    wait_at(read_last, last.parity);
                    for_weights ? fetch_weights(last.slot, next, first_tile) : fetch_x(last.slot, next, first_row);
                    next += K_WARPS;
                }
                __syncwarp();
            });
            read_last = read(turn.slot);
            last = turn;
            turn.step_on();
        }
        wait_for_products<0>();
        if (read_last && lane == 0) arrive(read_last);
    }

    // The memory of the ring has been the sums', and becomes the ring's again.
    BS_DEVICE void end_turn() const { order_copies_after_stores(); }
};
