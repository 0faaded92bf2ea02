// How chunks come to warps that multiply together: copies by the hardware into a ring of stages. Every warp
// has its own weights copied as soon as it is done with those before; x, which the warps of a row share,
// is copied by the first of them when all are done with it. Each slot of the ring has a barrier that
// opens when it is full, and one for when its x has been read.
#pragma once
#include "bulk.cuh"
#include "stream_place.cuh"
#include "wgmma.cuh"

struct Ring : Place {
    static constexpr int SLOTS = K_WARPS * STAGES;

    // A slot, and whether its barriers open for an even or an odd time.
    struct Turn {
        int slot = 0;
        u32 parity = 0;

        BS_DEVICE void step_on() {
            if (++slot == STAGES) slot = 0, parity ^= 1;
        }
    };

    u32 barriers;
    const u8* codes_from[TILES];
    const u8* scales_from[TILES];
    int first_row;  // of x
    Turn turn;

    BS_DEVICE Ring(const Arguments& a, u32 shared) : Place(a, shared) {
        __shared__ u64 memory[2 * SLOTS];
        barriers = shared_address(memory);
        if (threadIdx.x == 0) {
            fetch_map(a.x_map);
            for (int i = 0; i < SLOTS; i++) {
                make_barrier(barriers + 8 * i, ROW_WARPS + 1);
                make_barrier(barriers + 8 * (SLOTS + i), ROW_WARPS);
            }
            show_barriers();
        }
        __syncthreads();
    }

    BS_DEVICE u32 full(int slot) const { return barriers + 8 * (k_warp * STAGES + slot); }
    BS_DEVICE u32 read(int slot) const { return full(slot) + 8 * SLOTS; }
    BS_DEVICE u32 stage_of(int slot) const { return shared + slot * STAGE_BYTES; }

    BS_DEVICE void aim(const Rows& rows, int first_column) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            codes_from[i] = codes_of(i, rows);
            scales_from[i] = scales_of(i, rows);
        }
        first_row = rows.begin + first_column;
    }

    // Of a chunk; what is beyond k becomes zero.
    BS_DEVICE void fetch_weights(int slot, int chunk) const {
        const u32 to = own(stage_of(slot)), scales_to = to + TILES * CODE_BYTES, barrier = full(slot);
        const int eight = chunk * CHUNK / (8 * BLOCK);
        const bool whole = (chunk + 1) * CHUNK <= a.k;
        const int code_bytes = whole ? CODE_BYTES : (units() - chunk * UNITS) * 128 * BITS;
        const int scale_bytes = whole ? SCALE_BYTES : min((eights() - eight) * 128, SCALE_BYTES);
        if (lane == 0) {
            arrive_and_expect(barrier, TILES * (code_bytes + scale_bytes));
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                copy_bulk(to + i * CODE_BYTES, codes_from[i] + static_cast<long long>(chunk) * CODE_BYTES,
                          code_bytes, barrier);
                copy_bulk(scales_to + i * SCALE_BYTES, scales_from[i] + 128 * eight, scale_bytes, barrier);
            }
        }
        if (!whole)
#pragma unroll 1
            for (int i = 0; i < TILES; i++) {
                clear_bytes(to + i * CODE_BYTES + code_bytes, CODE_BYTES - code_bytes);
                clear_bytes(scales_to + i * SCALE_BYTES + scale_bytes, SCALE_BYTES - scale_bytes);
            }
    }

    BS_DEVICE void clear_bytes(u32 from, int bytes) const {
        for (int at = 4 * lane; at < bytes; at += 128)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(from + at), "r"(0u) : "memory");
    }

    // By one lane for all warps of the row; beyond k and the last row there are zeros.
    BS_DEVICE void fetch_x(int slot, int chunk) const {
        const u32 to = stage_of(slot) + k_warp * X_BYTES, barrier = full(slot);
        arrive_and_expect(barrier, X_BYTES);
#pragma unroll
        for (int panel = 0; panel < UNITS; panel++)
            copy_box(to + panel * PANEL_BYTES, a.x_map, chunk * CHUNK + 64 * panel, first_row, barrier);
    }

    // All chunks of this warp, from `first` to `end` of its block; `multiply` takes a stage, a chunk and the
    // barrier of the slot before, at which it arrives when the x there has been read.
    template <class Multiply>
    BS_DEVICE void for_chunks(const Rows& rows, int first_column, int first, int end,
                              const Multiply& multiply) {
        const bool leads = row_warp == 0 && lane == 0;
        aim(rows, first_column);
        Turn ahead = turn;
        int next = first + k_warp;  // chunk to fetch
        for (int i = 0; i < STAGES && next < end; i++, next += K_WARPS, ahead.step_on())
            fetch_weights(ahead.slot, next);
        wait_for_previous();
        if (leads) {
            ahead = turn;
            for (int chunk = first + k_warp; chunk < next; chunk += K_WARPS, ahead.step_on())
                fetch_x(ahead.slot, chunk);
        }
        __syncwarp();
        Turn last = turn;
        u32 read_last = 0;  // none yet
#pragma unroll 1
        for (int chunk = first + k_warp; chunk < end; chunk += K_WARPS) {
            wait_at(full(turn.slot), turn.parity);
            multiply(stage_of(turn.slot), chunk, read_last);
            __syncwarp();
            if (next < end) fetch_weights(turn.slot, next);
            // The x of the slot before goes with the weights that were fetched into it a chunk ago.
            if (leads && read_last && next - K_WARPS < end) {
                wait_at(read_last, last.parity);
                fetch_x(last.slot, next - K_WARPS);
            }
            __syncwarp();
            next += K_WARPS;
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
