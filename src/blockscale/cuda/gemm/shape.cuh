// The shape of a GEMM: a Config, which a kernel is specialised by, a Format of weights, and what follows from both.
//
//   TILE_M          rows of x that a CTA multiplies at a time: 1, 2, 4 or a multiple of 8
//   TILES_PER_WARP  tiles of 16 rows of w; with GATED they alternate between gate and up
//   N_WARPS         warps along n, each with tiles of its own
//   K_WARPS         warps that share tiles and take every K_WARPS-th k tile
//   TILE_K, STAGES  k of a stage of one warp, 128 or 256; stages of the ring
//   SPLITS          CTAs that share the k of an output (split-K): a cluster, which reduces over DSMEM
//   CTAS_PER_SM     that registers are left for
//   WGMMA           warpgroups multiply by wgmma, and TMA fills the ring
//   RAGGED          groups of rows of x belong to experts
//   SCALES_WEIGHTS  weights are multiplied by their scales, else the sums of blocks are
//   X, XScales      BFloat16x2 or Float16x2; of x in codes of E2M1, its decode::BlockScales, else void
//
// blockscale/kernels/matmul/stream/shared_memory.py decides where things lie in shared memory: X_PITCH to SUM_PITCH.
#pragma once
#include "gemm/lift.cuh"
#include "generated/gemm_arguments.cuh"

namespace bs::gemm {

template <class CONFIG, class FORMAT>
struct Shape : CONFIG {
    using Config = CONFIG;
    using Format = FORMAT;
    using X = typename Config::X;
    using Arguments = typename Either<Config::WGMMA, WgmmaArguments, gemm::Arguments>::Type;
    using Lift = gemm::Lift<X, Format, Config::SCALES_WEIGHTS>;

    using DecoderOf = decode::DecoderOf<X, Format, Config::GATED ? 2 : 1, Config::TABLE_BYTES>;
    using Decoder = typename DecoderOf::Type;

    static constexpr bool X_CODED = !Same<typename Config::XScales, void>::VALUE;
    static constexpr int UNITS = Config::TILE_K / 64;  // of 64 k, in a k tile
    static constexpr int WARPS = Config::N_WARPS * Config::K_WARPS;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int REGISTERS = 65536 / (THREADS * Config::CTAS_PER_SM);  // that a thread can have
    static constexpr int BRANCHES = Config::GATED ? 2 : 1;
    static constexpr int WARP_BRANCHES = BRANCHES;  // tiles of a warp alternate between gate and up
    static constexpr int TILE_N = 16 * Config::TILES_PER_WARP / BRANCHES * Config::N_WARPS;  // output columns of a CTA

    // With TILE_M below 8, the 8 columns of an accumulator hold the sums of several blocks of k.
    static constexpr int BLOCKS_APART = Config::TILE_M < 8 ? 8 / Config::TILE_M : 1;
    static constexpr int ACCUMULATORS = 8 / BLOCKS_APART;                        // for eight blocks
    static constexpr int M_TILES = Config::TILE_M < 8 ? 1 : Config::TILE_M / 8;  // of 8 rows of x
    static constexpr int SUMS = Config::TILE_M == 1 ? 2 : 4;  // running sums of a lane, of one tile and m tile

    static_assert(Config::TILE_K >= 8 * Format::BLOCK || Config::TILE_M >= 8, "eight blocks stand side by side");
    static_assert(!Config::WGMMA || (Config::SCALES_WEIGHTS && Config::N_WARPS % 4 == 0), "warpgroups share rows of x");
    static_assert(!Config::WGMMA || !X_CODED, "TMA copies x, and decodes nothing");
    static_assert(!Config::GATED || Config::TILES_PER_WARP % 2 == 0, "tiles alternate between gate and up");
    static_assert(Config::TILE_M == 1 || Config::TILE_M == 2 || Config::TILE_M == 4 || Config::TILE_M % 8 == 0,
                  "mma takes 8 columns");
};

}  // namespace bs::gemm
