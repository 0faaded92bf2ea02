// The mainloop of a warp: fragments and scales out of a stage, and products.
//
// Scales. An atom has the four scales of row r of a group as a word, at (r % 32) * 16 + r / 32 * 4. A lane loads the word
// of one row of 32: t / 4 + 8 (t % 4). That is where products look for it: rows of x of the first 16 in threads 0 and 1 of
// a quad and of the second 16 in threads 2 and 3, each 8 rows of w in one thread of a quad. So one word of a lane serves
// two tiles of 16 rows of x, or four tiles of 8 rows of w.
#pragma once
#include "gemm/block_scaled_ring.cuh"
#include "gemm/unrolled.cuh"
#include "gemm/warp_scaled_shape.cuh"

namespace bs::gemm {

template <class Shape>
struct WarpScaledMainloop {
    using Mma = typename Shape::Mma;
    static constexpr int M_TILES = Shape::M_TILES, N_TILES = Shape::N_TILES, WORDS = Shape::SCALE_GROUPS;

    const BlockScaledRing<Shape>& ring;
    int lane, m_warp, n_warp;
    RingTurn<Shape::STAGES> turn;
    float sums[M_TILES][N_TILES][4];

    BS_DEVICE WarpScaledMainloop(const BlockScaledRing<Shape>& ring)
        : ring(ring), lane(threadIdx.x % 32), m_warp(threadIdx.x / 32 % Shape::M_WARPS),
          n_warp(threadIdx.x / 32 / Shape::M_WARPS) {}

    // The first row of w of tile `i` of 8 rows, in the stage; of gate and up, a warp has the same columns.
    BS_DEVICE int w_row(int i) const {
        if constexpr (!Shape::GATED) return n_warp * Shape::WARP_N + 8 * i;
        return i / Shape::BRANCH_TILES * Shape::TILE_N + n_warp * (Shape::WARP_N / 2) + i % Shape::BRANCH_TILES * 8;
    }

    static BS_DEVICE u32 scale_word(u32 atoms, int group, int row) {
        u32 word[1];
        ptx::load_shared(word, atoms + 512 * group + row % 32 * 16 + row / 32 * 4);
        return word[0];
    }

    // This lane's words of a scale group. `first` is the row of the atom that the tile begins with.
    BS_DEVICE void load_scales(u32 (&x)[M_TILES / 2], u32& w, int group, int first) const {
        const int own = lane / 4 + lane % 4 * 8;  // of 32 rows
#pragma unroll
        for (int i = 0; i < M_TILES / 2; i++)
            x[i] = scale_word(ring.x_scale_at(turn.slot), group, m_warp * Shape::WARP_M + 32 * i + own);
        const int row = w_row(lane % 4) + lane / 4, branch = row / Shape::TILE_N % Shape::BRANCHES;
        w = scale_word(ring.w_scale_at(turn.slot) + branch * (512 * Shape::SCALE_GROUPS), group,
                       first + row - branch * Shape::TILE_N);
    }

    template <int STEP>
    BS_DEVICE void multiply(const u32 (&x_scales)[M_TILES / 2], u32 w_scales) {
        u32 a[M_TILES][4], b[N_TILES / 2][4];
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
            const int row = m_warp * Shape::WARP_M + 16 * i + lane % 16;
            Mma::template load<Shape::X_TYPE>(a[i], swizzled(ring.x_at(turn.slot), row, 2 * STEP + lane / 16));
        }
#pragma unroll
        for (int i = 0; i < N_TILES / 2; i++) {
            const int row = w_row(2 * i + lane / 16) + lane % 8;
            Mma::template load<Shape::W_TYPE>(b[i], swizzled(ring.w_at(turn.slot), row, 2 * STEP + lane / 8 % 2));
        }
        unrolled<M_TILES>([&](auto m) {
            unrolled<N_TILES>([&](auto n) {
                constexpr int M = decltype(m)::VALUE, N = decltype(n)::VALUE;
                const u32 fragment[2] = {b[N / 2][N % 2 * 2], b[N / 2][N % 2 * 2 + 1]};
                Mma::template add<STEP * Mma::SCALES % 4, M % 2, N>(sums[M][N], a[M], fragment, x_scales[M / 2],
                                                                    w_scales);
            });
        });
    }

    // One stage, of which `steps` have k that exists.
    BS_DEVICE void run_stage(int steps, int first) {
        ptx::mbarrier_wait(ring.full(turn.slot), turn.parity);
        u32 x_scales[M_TILES / 2], w_scales;
        unrolled<Shape::STEPS>([&](auto step) {
            constexpr int STEP = decltype(step)::VALUE;
            if (STEP < steps) {
                if (STEP * Mma::SCALES % 4 == 0) load_scales(x_scales, w_scales, STEP * Mma::SCALES / 4, first);
                multiply<STEP>(x_scales, w_scales);
            }
        });
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(ring.empty(turn.slot));
        turn.step_on();
    }

    BS_DEVICE void run(const typename Shape::Arguments& a, const OutputTile& tile) {
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) sums[i / (4 * N_TILES)][i / 4 % N_TILES][i % 4] = 0.0f;
        const int all = (a.k + Mma::K - 1) / Mma::K;
#pragma unroll 1
        for (int done = 0; done < all; done += Shape::STEPS) run_stage(all - done, tile.n_tile * Shape::TILE_N % 128);
    }
};

}  // namespace bs::gemm
