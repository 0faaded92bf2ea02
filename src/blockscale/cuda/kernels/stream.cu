// The streaming GEMM of gemm/stream.cuh, specialised by what the compiler's command line defines: see gemm/shape.cuh.
#include "gemm/stream.cuh"

using namespace bs;

struct Config {
    static constexpr int TILE_M = BS_TILE_M, TILES_PER_WARP = BS_TILES_PER_WARP, TILE_K = BS_TILE_K;
    static constexpr int N_WARPS = BS_N_WARPS, K_WARPS = BS_K_WARPS;
    static constexpr int STAGES = BS_STAGES, SPLITS = BS_SPLITS, CTAS_PER_SM = BS_CTAS_PER_SM;
    static constexpr bool WGMMA = BS_WGMMA, GATED = BS_GATED, RAGGED = BS_RAGGED;
    static constexpr bool SCALES_WEIGHTS = BS_SCALES_WEIGHTS;
    using X = ptx::BS_X;
#if BS_X_CODED
    using XScales = decode::BlockScales<decode::BS_X_SCALE, BS_X_BLOCK>;
#else
    using XScales = void;
#endif

    // Bytes of shared memory; SUM_PITCH counts floats.
    static constexpr int TABLE_BYTES = BS_TABLE_BYTES, ZERO_BYTES = BS_ZERO_BYTES;
    static constexpr int X_PITCH = BS_X_PITCH, X_BYTES = BS_X_BYTES;
    static constexpr int CODE_BYTES = BS_CODE_BYTES, SCALE_BYTES = BS_SCALE_BYTES, SCALE_GROUPS = BS_SCALE_GROUPS;
    static constexpr int STAGE_ALIGNMENT = BS_STAGE_ALIGNMENT, STAGE_BYTES = BS_STAGE_BYTES;
    static constexpr int DECODED_BYTES = BS_DECODED_BYTES, SUM_PITCH = BS_SUM_PITCH;
};

using Format = decode::WeightFormat<decode::BS_ELEMENT, BS_BITS, decode::BS_SCALE, BS_BLOCK, BS_SYMMETRIC>;
using Shape = gemm::Shape<Config, Format>;

// blockIdx: x counts tiles of TILE_N outputs, y splits of k, z groups.
extern "C" __global__ void __launch_bounds__(Shape::THREADS, Shape::CTAS_PER_SM)
    stream(const __grid_constant__ Shape::Arguments a) {
    u8* memory = ptx::dynamic_shared() + Shape::TABLE_BYTES;
    for (int i = threadIdx.x; i < Shape::ZERO_BYTES / 4; i += Shape::THREADS) reinterpret_cast<u32*>(memory)[i] = 0;
    if constexpr (Shape::RAGGED) {
        ptx::wait_for_prerequisites();  // the kernel before may have written the group sizes
        int total;
        const gemm::RowRange rows = gemm::find_rows<Shape>(a, total);
        if (blockIdx.y == 0) gemm::clear_rows<Shape>(a, total);
        if (rows.group < 0) return;
        gemm::stream<Shape>(a, memory, rows);
    } else {
        const gemm::RowRange rows{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.z) * a.m,
                                  static_cast<int>(blockIdx.z + 1) * a.m};
        if (Shape::ZERO_BYTES) __syncthreads();
        gemm::stream<Shape>(a, memory, rows);
    }
}
