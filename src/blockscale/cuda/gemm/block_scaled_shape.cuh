// The shape of a block-scaled GEMM by tcgen05: a Config, which a kernel is specialised by, and what follows from it.
//
//   KIND, X_TYPE, W_TYPE  of the product: see ptx/tcgen05_descriptors.cuh
//   MMA_N           columns of an accumulator: rows of w that are multiplied together; with GATED, half are gate's
//   CTAS            1, or 2 for pairs of CTAs that multiply 256 rows of x together
//   PANELS          128-byte panels along k of a stage
//   STAGES          of the ring
//   ACCUMULATORS    in TMEM; two overlap by SHARED_COLUMNS
//   SCALE_SETS      of TMEM columns for the scales of a stage, from SCALE_COLUMN on
//   MULTICAST       the even CTA of a pair loads scales of w for both
//   RAGGED          groups of rows of x belong to experts
//   OUT             the dtype of the output
//
// blockscale/kernels/matmul/sm100_gemm decides where things lie in shared memory (shared_memory.py) and TMEM (columns.py).
#pragma once
#include "generated/block_scaled_arguments.cuh"
#include "generated/enums.cuh"
#include "ptx/tcgen05_descriptors.cuh"

namespace bs::gemm {

template <class CONFIG>
struct BlockScaledShape : CONFIG {
    using Config = CONFIG;
    using Kind = ptx::tcgen05::Kind;
    using Arguments = BlockScaledArguments;

    static constexpr int THREADS = 192;           // a warp that loads, one that multiplies, four that store
    static constexpr int READERS = 1;             // of a stage: one tcgen05.commit
    static constexpr int CTA_ROWS = 128;          // of x
    static constexpr int TILE_M = CTA_ROWS * Config::CTAS;
    static constexpr int BRANCHES = Config::GATED ? 2 : 1;
    static constexpr int TILE_N = Config::MMA_N / BRANCHES;      // columns of the output
    static constexpr int CTA_B_ROWS = Config::MMA_N / Config::CTAS;  // of w, in the shared memory of a CTA
    // An instruction takes up to 256 rows of w, so that 384 are two. Each CTA of a pair holds half of each one's rows.
    static constexpr int FIRST_N = Config::MMA_N < 256 ? Config::MMA_N : 256, SECOND_N = Config::MMA_N - FIRST_N;
    static constexpr int BOX_ROWS = Config::GATED ? TILE_N : SECOND_N ? 64 : CTA_B_ROWS;  // of w, that one load brings
    static constexpr int CLUSTER = 1;             // CTAs along n that share rows of x

    // Where a box of a CTA begins in a tile of w: boxes hold the CTA's half of the first instruction's rows, then of the
    // second one's.
    static BS_DEVICE int row_of_box(int box, int rank) {
        const int row = box * BOX_ROWS;
        if constexpr (SECOND_N > 0)
            if (row >= FIRST_N / Config::CTAS) return row + FIRST_N / Config::CTAS + rank * (SECOND_N / Config::CTAS);
        return row + rank * (FIRST_N / Config::CTAS);
    }

    // Of a stage.
    static constexpr int MMAS = 4 * Config::PANELS;  // an instruction takes 32 bytes of k
    static constexpr int SCALES_PER_MMA = Config::KIND == Kind::MXF8F6F4 ? 1 : Config::KIND == Kind::MXF4 ? 2 : 4;
    static constexpr int MMA_K = Config::KIND == Kind::MXF8F6F4 ? 32 : 64;
    static constexpr int TILE_K = MMAS * MMA_K;
    static constexpr int SCALE_GROUPS = MMAS * SCALES_PER_MMA / 4;  // of four scales of a row

    // Scales in TMEM: four columns for 128 rows and a scale group.
    static constexpr int B_ATOMS = Config::MMA_N / 128;
    static constexpr int X_SCALE_COLUMNS = 4 * SCALE_GROUPS, W_SCALE_COLUMNS = B_ATOMS * X_SCALE_COLUMNS;
    static constexpr int SET_COLUMNS = X_SCALE_COLUMNS + W_SCALE_COLUMNS;
    static constexpr int SECOND = Config::MMA_N - Config::SHARED_COLUMNS;  // where the second accumulator begins

    static_assert(ptx::tcgen05::is_legal<Config::CTAS, Config::KIND>(TILE_M, FIRST_N), "");
    static_assert(SECOND_N == 0 || (Config::CTAS == 2 && SECOND_N == 128), "boxes are halves of the second one's rows");
    static_assert(Config::MMA_N % 128 == 0, "scales come in atoms of 128 rows");
    static_assert(Config::STAGE_BYTES % 1024 == 0 && Config::X_BYTES % 1024 == 0, "panels are swizzled");
    static_assert(Config::X_BYTES == CTA_ROWS * 128 * Config::PANELS, "");
    static_assert(Config::W_BYTES == CTA_B_ROWS * 128 * Config::PANELS, "");
    static_assert(Config::ACCUMULATORS == 1 || Config::ACCUMULATORS == 2, "");
    static_assert((Config::ACCUMULATORS == 2 ? SECOND : 0) + Config::MMA_N <= Config::SCALE_COLUMN, "");
    static_assert(Config::SCALE_COLUMN + Config::SCALE_SETS * SET_COLUMNS <= ptx::tcgen05::COLUMNS, "");
    static_assert(Config::SHARED_COLUMNS % 32 == 0, "the epilogue reads 32 columns at a time");
    static_assert(Config::SCALE_SETS <= Config::STAGES, "a stage has one set");
    static_assert(!Config::GATED || Config::MMA_N == 256, "an atom of scales of gate and one of up");
};

}  // namespace bs::gemm
