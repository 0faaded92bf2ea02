// The shape of a tiled GEMM: a Config, which a kernel is specialised by, a Format of weights, and what follows from both.
//
//   TILE_M          rows of x of a CTA's tile: a multiple of 32, up to 256
//   WARPGROUPS      that decode and multiply; one more brings the operands
//   TILES_PER_WARP  tiles of 16 rows of w
//   GATED           the first warpgroup has rows of gate, the second the same rows of up
//   STAGES          of the ring, each of 64 k
//   TURN            k tiles that are unrolled: those whose scales stand together, or two of them
//   CLUSTER         CTAs with different rows of w and the same rows of x, which each of them loads a part of for all
//   SPLIT           tiles that fill no round are split along k, where that pays (gemm/work.cuh)
//   PARTS           of k, which as many CTAs of a cluster have of one tile (gemm/cluster_sums.cuh)
//   RAGGED          groups of rows of x belong to experts
//   TRANSPOSED      sums run over rows of w, and "n" of the arguments counts its columns, "k" its rows
//   X, OUT          BFloat16x2 or Float16x2; the dtype of the output
//   TABLE_BYTES     of codebooks in shared memory, before the stages; 0 where they stay in registers
//
// blockscale/kernels/matmul/sm90_gemm/shared_memory.py decides where things lie in shared memory.
#pragma once
#include "gemm/lift.cuh"
#include "generated/gemm_arguments.cuh"

namespace bs::gemm {

template <class CONFIG, class FORMAT>
struct TiledShape : CONFIG {
    using Config = CONFIG;
    using Format = FORMAT;
    using X = typename Config::X;
    using Arguments = WgmmaArguments;
    using Lift = gemm::Lift<X, Format, true>;
    using DecoderOf = decode::DecoderOf<X, Format, Config::GATED ? 2 : 1, Config::TABLE_BYTES>;
    using Decoder = typename DecoderOf::Type;

    static constexpr bool SCALES_WEIGHTS = true;
    static constexpr int TILE_K = 64, UNITS = 1, K_WARPS = 1, SUMS = 4;
    static constexpr int N_WARPS = 4 * Config::WARPGROUPS;
    static constexpr int CONSUMERS = 128 * Config::WARPGROUPS, THREADS = CONSUMERS + 128;
    static constexpr int M_TILES = Config::TILE_M / 8;
    static constexpr int BRANCHES = Config::GATED ? 2 : 1;
    static constexpr int WARP_BRANCHES = 1;
    static constexpr int CTA_TILES = N_WARPS * Config::TILES_PER_WARP;       // of 16 rows of w
    static constexpr int BRANCH_TILES = CTA_TILES / BRANCHES;
    static constexpr int TILE_N = 16 * BRANCH_TILES;  // output columns of a CTA
    static constexpr int SCALE_GROUP_K = 8 * Format::BLOCK;  // columns of w whose scales stand together

    // Of a stage, where weights are transposed: units of the layout side by side, four times one below the other.
    static constexpr int UNITS_ACROSS = TILE_N / 64, UNITS_BELOW = UNITS_ACROSS * Format::UNIT_BYTES;

    // Registers of a thread, of two warpgroups that multiply: what the producer does without, they get. One warpgroup
    // has enough.
    static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

    static_assert(Config::PARTS == 1 || (Config::CLUSTER == 1 && !Config::RAGGED && !Config::SPLIT),
                  "a cluster has one tile, and each CTA of it all of x");
    static_assert(Config::TILE_M % (16 * Config::CLUSTER) == 0, "a CTA loads whole groups of 8 rows of x");
    static_assert(Config::WARPGROUPS <= 2, "registers are shared out among so many");
    static_assert(Config::TILE_M % 32 == 0, "32 rows of x are stored at a time");
    static_assert(!(Config::GATED && Config::TRANSPOSED), "a gate is a matter of rows");
    static_assert(!Config::GATED || Config::WARPGROUPS == 2, "one has gate, the other up");
};

}  // namespace bs::gemm
