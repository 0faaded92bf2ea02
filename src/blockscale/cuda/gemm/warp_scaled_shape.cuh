// The shape of a block-scaled GEMM by mma.sync: a Config, which a kernel is specialised by, and what follows from it.
//
//   KIND, X_TYPE, W_TYPE  of the product: see gemm/warp_scaled_mma.cuh
//   W_ROWS          rows of w of a CTA: 64 or 128; with GATED, half are gate's
//   STAGES          of the ring, each of one panel of 128 bytes along k
//   RAGGED          groups of rows of x belong to experts
//   OUT             the dtype of the output
//
// blockscale/kernels/matmul/sm120_gemm/shared_memory.py decides where things lie in shared memory.
#pragma once
#include "gemm/warp_scaled_mma.cuh"
#include "generated/block_scaled_arguments.cuh"
#include "generated/enums.cuh"

namespace bs::gemm {

template <class CONFIG>
struct WarpScaledShape : CONFIG {
    using Config = CONFIG;
    using Arguments = BlockScaledArguments;
    using Mma = ScaledMma<Config::KIND, Config::X_TYPE, Config::W_TYPE>;

    static constexpr int CTAS = 1, CLUSTER = 1, PANELS = 1;
    static constexpr bool MULTICAST = false;
    static constexpr int CTA_ROWS = 128, TILE_M = 128;  // of x
    static constexpr int BRANCHES = Config::GATED ? 2 : 1;
    static constexpr int TILE_N = Config::W_ROWS / BRANCHES;  // columns of the output
    static constexpr int CTA_B_ROWS = Config::W_ROWS, BOX_ROWS = TILE_N;
    static constexpr int WARP_M = 64, WARP_N = 32;  // rows of x and of w that a warp multiplies
    static constexpr int M_WARPS = CTA_ROWS / WARP_M, N_WARPS = Config::W_ROWS / WARP_N;
    static constexpr int READERS = M_WARPS * N_WARPS;
    static constexpr int CONSUMERS = 32 * READERS, THREADS = CONSUMERS + 32;  // and a warp that loads
    static constexpr int M_TILES = WARP_M / 16, N_TILES = WARP_N / 8;
    static constexpr int BRANCH_TILES = N_TILES / BRANCHES;  // tiles of gate come before those of up

    // Of a stage.
    static constexpr int STEPS = 4;  // an instruction takes 32 bytes of k
    static constexpr int TILE_K = STEPS * Mma::K;
    static constexpr int SCALE_GROUPS = STEPS * Mma::SCALES / 4;  // of four scales of a row

    static BS_DEVICE int row_of_box(int box, int) { return box * BOX_ROWS; }  // in a tile of w

    static_assert(Config::STAGE_BYTES % 1024 == 0, "panels are swizzled");
    static_assert(Config::X_BYTES == CTA_ROWS * 128 && Config::W_BYTES == CTA_B_ROWS * 128, "");
};

}  // namespace bs::gemm
