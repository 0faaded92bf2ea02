// A ring of stages that cp.async fills with weights and x.
#pragma once
#include "gemm/x_rows.cuh"

namespace bs::gemm {

template <class Shape>
struct CpAsyncRing : XRows<Shape> {
    using Rows = XRows<Shape>;
    using Rows::Rows, Rows::a, Rows::shared, Rows::lane, Rows::n_warp, Rows::k_warp;
    using Rows::tiles, Rows::units, Rows::scale_groups, Rows::fetch_x, Rows::step_x;
    using Format = typename Shape::Format;

    static constexpr int TILES = Shape::TILES_PER_WARP, BRANCHES = Shape::BRANCHES;
    static constexpr int WARP_BYTES = TILES * (Shape::CODE_BYTES + Shape::SCALE_BYTES);  // of weights, in a stage

    // Where this lane reads its part of the k tile `next`; each copy moves them on.
    const u8* codes_from[TILES];
    const u8* scales_from[TILES];
    int next;

    // Of tile i of this warp; a tile beyond the last is computed and not stored.
    BS_DEVICE long long tile_of(int i, const RowRange& rows) const {
        const int tile = (blockIdx.x * Shape::N_WARPS + n_warp) * (TILES / BRANCHES) + i / BRANCHES;
        return static_cast<long long>(rows.group) * tiles() + min(tile, tiles() - 1);
    }

    // In a stage, the codes of a warp's tiles and then their scales follow x.
    BS_DEVICE u32 codes_at(u32 stage, int i) const {
        return stage + Shape::K_WARPS * Shape::X_BYTES + (n_warp * Shape::K_WARPS + k_warp) * WARP_BYTES +
               i * Shape::CODE_BYTES;
    }
    BS_DEVICE u32 scales_at(u32 stage, int i) const { return codes_at(stage, TILES) + i * Shape::SCALE_BYTES; }
    static constexpr int SCALE_RUNS = 0;  // every warp multiplies by itself

    BS_DEVICE void aim(const RowRange& rows, int first_m, int first_k_tile) {
        next = first_k_tile + k_warp;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const Weight& w = a.weight[i % BRANCHES];
            codes_from[i] = w.codes + tile_of(i, rows) * units() * Format::UNIT_BYTES +
                            static_cast<long long>(next) * Shape::CODE_BYTES + 16 * lane;
            scales_from[i] = w.scale + tile_of(i, rows) * scale_groups() * 128 + 16 * lane;
        }
        this->aim_x(rows, first_m, next);
    }

    // Of the k tile `next`; what is beyond k reads as zero.
    template <bool WHOLE>
    BS_DEVICE void copy_weights(u32 stage) {
        const int codes_left = (units() - next * Shape::UNITS) * Format::UNIT_BYTES - 16 * lane;
        const int group = next * Shape::TILE_K / (8 * Format::BLOCK), groups_left = scale_groups() - group;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const u32 to = codes_at(stage, i) + 16 * lane;
#pragma unroll
            for (int j = 0; j < Shape::CODE_BYTES; j += 512)
                if (j + 512 > Shape::CODE_BYTES && 16 * lane >= Shape::CODE_BYTES - j)
                    continue;
                else if (WHOLE)
                    ptx::cp_async(to + j, codes_from[i] + j);
                else
                    ptx::cp_async(to + j, j < codes_left ? codes_from[i] + j : a.weight[0].codes, j < codes_left);
            codes_from[i] += Shape::K_WARPS * Shape::CODE_BYTES;
            if (16 * lane < Shape::SCALE_BYTES) {
                const u32 scales_to = scales_at(stage, i) + 16 * lane;
                const bool there = lane / 8 < groups_left;
                const u8* from = scales_from[i] + 128 * group;
                if (WHOLE)
                    ptx::cp_async(scales_to, from);
                else
                    ptx::cp_async(scales_to, there ? from : a.weight[0].scale, there);
            }
        }
    }

    BS_DEVICE void step_on() {
        step_x();
        next += Shape::K_WARPS;
    }

    BS_DEVICE bool is_whole() const { return (next + 1) * Shape::TILE_K <= a.k; }

    BS_DEVICE void copy(u32 stage, int end, int m) {
        if (next < end) {
            if (is_whole()) {
                copy_weights<true>(stage);
                this->template put_x<true>(stage, next, m);
            } else {
                copy_weights<false>(stage);
                this->template put_x<false>(stage, next, m);
            }
        }
        step_on();
        if (next < end) fetch_x(next, m);
        ptx::cp_async_commit();
    }

    // All stages but one. Weights are copied before the kernel ahead in the stream has ended, x after it, since that
    // kernel may write x. `meanwhile` runs while the weights come.
    template <class Meanwhile>
    BS_DEVICE void copy_first(int end, int m, const Meanwhile& meanwhile) {
        const int begin = next;
        for (int i = 0; i < Shape::STAGES - 1; i++) {
            if (next < end)
                is_whole() ? copy_weights<true>(shared + i * Shape::STAGE_BYTES)
                           : copy_weights<false>(shared + i * Shape::STAGE_BYTES);
            next += Shape::K_WARPS;
        }
        meanwhile();
        ptx::wait_for_prerequisites();
        next = begin;
        if (next < end) fetch_x(next, m);
        for (int i = 0; i < Shape::STAGES - 1; i++) {
            if (next < end)
                is_whole() ? this->template put_x<true>(shared + i * Shape::STAGE_BYTES, next, m)
                           : this->template put_x<false>(shared + i * Shape::STAGE_BYTES, next, m);
            step_on();
            if (next < end) fetch_x(next, m);
            ptx::cp_async_commit();
        }
    }

    // Warps that share x wait for each other, so that a stage is not overwritten while one of them reads it.
    BS_DEVICE void sync_n_warps() const {
        if (Shape::N_WARPS == 1)
            __syncwarp();
        else if (Shape::K_WARPS == 1)
            __syncthreads();
        else
            ptx::bar_sync(1 + k_warp, 32 * Shape::N_WARPS);
    }

    // All k tiles of this warp, from `first` to `end` of its CTA; `multiply` takes a stage and a k tile.
    template <class Meanwhile, class Multiply>
    BS_DEVICE void for_k_tiles(const RowRange& rows, int first_m, int first, int end, const Meanwhile& meanwhile,
                               const Multiply& multiply) {
        const int m = min(rows.end - rows.begin - first_m, Shape::TILE_M);
        aim(rows, first_m, first);
        copy_first(end, m, meanwhile);
        u32 full = shared, empty = shared + (Shape::STAGES - 1) * Shape::STAGE_BYTES;
#pragma unroll 1
        for (int k_tile = first; k_tile < end; k_tile += Shape::K_WARPS) {
            ptx::cp_async_wait<Shape::STAGES - 2>();
            sync_n_warps();
            copy(empty, end, m);
            if (k_tile + k_warp < end) multiply(full, k_tile + k_warp);
            empty = full;
            full = full + Shape::STAGE_BYTES == shared + Shape::STAGES * Shape::STAGE_BYTES ? shared
                                                                                            : full + Shape::STAGE_BYTES;
        }
    }

    BS_DEVICE void end_turn() const {}
};

}  // namespace bs::gemm
