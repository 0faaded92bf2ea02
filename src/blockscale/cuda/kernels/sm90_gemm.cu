// The tiled GEMM of gemm/tiled.cuh, specialised by what the compiler's command line defines: see gemm/tiled_shape.cuh.
#include "gemm/tiled.cuh"

using namespace bs;

struct Config {
    static constexpr int TILE_M = BS_TILE_M, WARPGROUPS = BS_WARPGROUPS, TILES_PER_WARP = BS_TILES_PER_WARP;
    static constexpr int STAGES = BS_STAGES, TURN = BS_TURN, CLUSTER = BS_CLUSTER, PARTS = BS_PARTS;
    static constexpr bool GATED = BS_GATED, RAGGED = BS_RAGGED, TRANSPOSED = BS_TRANSPOSED, SPLIT = BS_SPLIT;
    static constexpr gemm::Activation ACTIVATION = gemm::BS_ACTIVATION;
    static constexpr numbers::Dtype OUT = numbers::BS_OUT;
    using X = ptx::BS_X;

    // Bytes of shared memory.
    static constexpr int X_BYTES = BS_X_BYTES, CODE_BYTES = BS_CODE_BYTES, SCALE_BYTES = BS_SCALE_BYTES;
    static constexpr int SCALE_GROUPS = BS_SCALE_GROUPS;  // that a stage has of a tile
    static constexpr int SCALE_TILES = BS_SCALE_TILES;    // of 16 rows, times these
    static constexpr int STAGE_BYTES = BS_STAGE_BYTES, DECODED_BYTES = BS_DECODED_BYTES;
    static constexpr int STAGING_BYTES = BS_STAGING_BYTES, TABLE_BYTES = BS_TABLE_BYTES;
};

using Format = decode::WeightFormat<decode::BS_ELEMENT, BS_BITS, decode::BS_SCALE, BS_BLOCK, BS_SYMMETRIC>;
using Shape = gemm::TiledShape<Config, Format>;

// blockIdx: x counts clusters, y the CTAs of one.
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) sm90_gemm(const __grid_constant__ Shape::Arguments a) {
    gemm::tiled<Shape>(a);
}
