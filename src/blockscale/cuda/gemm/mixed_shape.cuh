// The shape of a GEMM of 16-bit x and coded weights by tcgen05: a Config, which a kernel is specialised by, a Format of
// weights, and what follows from both.
//
//   TILE_M          rows of x: columns of an accumulator, at most 256
//   CTAS            1, or 2 for pairs of CTAs that multiply the same rows of x
//   STAGES          of the ring, each of 64 k
//   ACCUMULATORS    in TMEM; two overlap by SHARED_COLUMNS
//   SETS            of TMEM columns for the decoded weights of a stage, from SET_COLUMN on
//   GATED           half of the rows of w are gate's, the others up's
//   RAGGED          groups of rows of x belong to experts
//   X, OUT          BFloat16x2 or Float16x2; the dtype of the output
//
// blockscale/kernels/matmul/sm100_mixed_gemm decides where things lie in shared memory (shared_memory.py) and TMEM
// (config.py).
#pragma once
#include "gemm/lift.cuh"
#include "generated/gemm_arguments.cuh"
#include "ptx/tcgen05_decoded.cuh"

namespace bs::gemm {

template <class CONFIG, class FORMAT>
struct MixedShape : CONFIG {
    using Config = CONFIG;
    using Format = FORMAT;
    using X = typename Config::X;
    using Arguments = WgmmaArguments;
    using Lift = gemm::Lift<X, Format, true>;
    using Decoder = decode::Decoder<X, Format::ELEMENT, Format::BITS, Format::SYMMETRIC>;

    // Warps: one loads, one multiplies, four store, eight decode 16 rows of w each.
    static constexpr int STORING = 2, DECODING = 6, N_WARPS = 8, THREADS = 32 * (DECODING + N_WARPS);
    static constexpr int READERS = N_WARPS + 1;     // of a stage: warps read codes, products x
    static constexpr int BRANCHES = Config::GATED ? 2 : 1;
    static constexpr int CTA_TILES = N_WARPS;       // of 16 rows of w
    static constexpr int BRANCH_TILES = CTA_TILES / BRANCHES;
    static constexpr int TILE_N = 16 * BRANCH_TILES;  // columns of the output
    static constexpr int CLUSTER = Config::CTAS;    // CTAs along n that share rows of x
    static constexpr int CTA_X_ROWS = Config::TILE_M / Config::CTAS;  // in the shared memory of a CTA

    // Of a warp that decodes.
    static constexpr int TILES_PER_WARP = 1, K_WARPS = 1, UNITS = 1, SCALE_GROUPS = 1, WARP_BRANCHES = 1;

    // Of a stage.
    static constexpr int TILE_K = 64, MMA_K = 16, MMAS = TILE_K / MMA_K;
    static constexpr int MMA_COLUMNS = MMA_K / 2, SET_COLUMNS = TILE_K / 2;

    // As gemm/accumulators.cuh names them.
    static constexpr int MMA_N = Config::TILE_M, SECOND_N = 0;
    static constexpr int SECOND = MMA_N - Config::SHARED_COLUMNS;  // where the second accumulator begins

    static_assert(ptx::tcgen05::is_legal_f16<Config::CTAS>(128 * Config::CTAS, MMA_N), "");
    static_assert(MMA_N % 32 == 0 && Config::SHARED_COLUMNS % 32 == 0, "the epilogue reads 32 columns at a time");
    static_assert(Config::STAGE_BYTES % 1024 == 0, "panels of x are swizzled");
    static_assert(Config::X_BYTES == CTA_X_ROWS * 128, "");
    static_assert(Config::ACCUMULATORS == 1 || Config::ACCUMULATORS == 2, "");
    static_assert((Config::ACCUMULATORS == 2 ? SECOND : 0) + MMA_N <= Config::SET_COLUMN, "");
    static_assert(Config::SET_COLUMN + Config::SETS * SET_COLUMNS <= ptx::tcgen05::COLUMNS, "");
    static_assert(Config::SETS <= Config::STAGES, "a stage has one set");
};

}  // namespace bs::gemm
