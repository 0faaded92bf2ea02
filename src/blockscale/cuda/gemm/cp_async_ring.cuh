// How chunks of weights and of x come to a warp: asynchronous copies into a ring of stages.
#pragma once
#include "gemm/x_rows.cuh"

struct Copies : XRows {
    using XRows::XRows;

    // Where the next chunk of this lane is; each copy moves them on.
    const u8* codes_from[TILES];
    const u8* scales_from[TILES];
    int next;  // chunk

    // Of tile i of this warp; a tile beyond the last is computed and not stored.
    BS_DEVICE long long tile_of(int i, const Rows& rows) const {
        const int tile = (blockIdx.x * ROW_WARPS + row_warp) * (TILES / BRANCHES) + i / BRANCHES;
        return static_cast<long long>(rows.group) * tiles() + min(tile, tiles() - 1);
    }

    // In a stage, the codes of a warp's tiles and then their scales follow x.
    BS_DEVICE u32 codes_at(u32 stage, int i) const {
        return stage + K_WARPS * X_BYTES + (row_warp * K_WARPS + k_warp) * WARP_BYTES + i * CODE_BYTES;
    }
    BS_DEVICE u32 scales_at(u32 stage, int i) const {
        return codes_at(stage, TILES) + i * SCALE_BYTES;
    }

    BS_DEVICE void aim(const Rows& rows, int first_column, int first_chunk) {
        next = first_chunk + k_warp;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const Weight& w = a.weight[i % BRANCHES];
            codes_from[i] = w.codes + tile_of(i, rows) * units() * (128 * BITS) +
                            static_cast<long long>(next) * CODE_BYTES + 16 * lane;
            scales_from[i] = w.scale + tile_of(i, rows) * eights() * 128 + 16 * lane;
        }
        aim_x(rows, first_column, next);
    }

    // Of the chunk `next`; what is beyond k reads as zero.
    template <bool WHOLE>
    BS_DEVICE void copy_weights(u32 stage) {
        const int codes_left = (units() - next * UNITS) * 128 * BITS - 16 * lane;
        const int eight = next * CHUNK / (8 * BLOCK), eights_left = eights() - eight;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const u32 to = codes_at(stage, i) + 16 * lane;
#pragma unroll
            for (int j = 0; j < CODE_BYTES; j += 512)
                if (j + 512 > CODE_BYTES && 16 * lane >= CODE_BYTES - j)
                    continue;
                else if (WHOLE)
                    copy_async(to + j, codes_from[i] + j);
                else
                    copy_async(to + j,
                               j < codes_left ? codes_from[i] + j : a.weight[0].codes, j < codes_left);
            codes_from[i] += K_WARPS * CODE_BYTES;
            if (16 * lane < SCALE_BYTES) {
                const u32 scales_to = scales_at(stage, i) + 16 * lane;
                const bool there = lane / 8 < eights_left;
                const u8* from = scales_from[i] + 128 * eight;
                if (WHOLE)
                    copy_async(scales_to, from);
                else
                    copy_async(scales_to, there ? from : a.weight[0].scale, there);
            }
        }
    }

    BS_DEVICE void step_on() {
        step_x();
        next += K_WARPS;
    }

    BS_DEVICE bool is_whole() const { return (next + 1) * CHUNK <= a.k; }

    BS_DEVICE void copy(u32 stage, int end, int columns) {
        if (next < end) {
            if (is_whole()) {
                copy_weights<true>(stage);
                put_x<true>(stage, next, columns);
            } else {
                copy_weights<false>(stage);
                put_x<false>(stage, next, columns);
            }
        }
        step_on();
        if (next < end) fetch_x(next, columns);
        commit_copies();
    }

    // All stages but one: weights ahead of the kernel before, which may still write x. While they come, there is
    // time for `meanwhile`.
    template <class Meanwhile>
    BS_DEVICE void copy_first(int end, int columns, const Meanwhile& meanwhile) {
        const int begin = next;
        for (int i = 0; i < STAGES - 1; i++) {
            if (next < end)
                is_whole() ? copy_weights<true>(shared + i * STAGE_BYTES)
                           : copy_weights<false>(shared + i * STAGE_BYTES);
            next += K_WARPS;
        }
        meanwhile();
        wait_for_previous();
        next = begin;
        if (next < end) fetch_x(next, columns);
        for (int i = 0; i < STAGES - 1; i++) {
            if (next < end)
                is_whole() ? put_x<true>(shared + i * STAGE_BYTES, next, columns)
                           : put_x<false>(shared + i * STAGE_BYTES, next, columns);
            step_on();
            if (next < end) fetch_x(next, columns);
            commit_copies();
        }
    }

    // Warps that share x wait for each other, so that a slot is not overwritten while one reads it.
    BS_DEVICE void meet_row() const {
        if (ROW_WARPS == 1)
            __syncwarp();
        else if (K_WARPS == 1)
            __syncthreads();
        else
            meet(1 + k_warp, 32 * ROW_WARPS);
    }

    // All chunks of this warp, from `first` to `end` of its block; `multiply` takes a stage and a chunk.
    template <class Meanwhile, class Multiply>
    BS_DEVICE void for_chunks(const Rows& rows, int first_column, int first, int end,
                              const Meanwhile& meanwhile, const Multiply& multiply) {
        const int columns = min(rows.end - rows.begin - first_column, COLUMNS);
        aim(rows, first_column, first);
        copy_first(end, columns, meanwhile);
        u32 full = shared, empty = shared + (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
        for (int chunk = first; chunk < end; chunk += K_WARPS) {
            wait_for_copies<STAGES - 2>();
            meet_row();
            copy(empty, end, columns);
            if (chunk + k_warp < end) multiply(full, chunk + k_warp);
            empty = full;
            full = full + STAGE_BYTES == shared + STAGES * STAGE_BYTES ? shared : full + STAGE_BYTES;
        }
    }

    BS_DEVICE void end_turn() const {}
};
