// The GEMM of 16-bit x and coded weights of gemm/mixed.cuh, specialised by what the compiler's command line defines: see
// gemm/mixed_shape.cuh.
#include "gemm/mixed.cuh"

using namespace bs;

struct Config {
    static constexpr int TILE_M = BS_TILE_M, CTAS = BS_CTAS, STAGES = BS_STAGES;
    static constexpr bool GATED = BS_GATED, RAGGED = BS_RAGGED;
    static constexpr gemm::Activation ACTIVATION = gemm::BS_ACTIVATION;
    static constexpr numbers::Dtype OUT = numbers::BS_OUT;
    using X = ptx::BS_X;

    // Columns of TMEM.
    static constexpr int ACCUMULATORS = BS_ACCUMULATORS, SHARED_COLUMNS = BS_SHARED_COLUMNS;
    static constexpr int SET_COLUMN = BS_SET_COLUMN, SETS = BS_SETS;

    // Bytes of shared memory.
    static constexpr int X_BYTES = BS_X_BYTES, CODE_BYTES = BS_CODE_BYTES, SCALE_BYTES = BS_SCALE_BYTES;
    static constexpr int STAGE_BYTES = BS_STAGE_BYTES, DECODED_BYTES = BS_DECODED_BYTES;
    static constexpr int STAGING_BYTES = BS_STAGING_BYTES;
};

using Format = decode::WeightFormat<decode::BS_ELEMENT, BS_BITS, decode::BS_SCALE, BS_BLOCK, BS_SYMMETRIC>;
using Shape = gemm::MixedShape<Config, Format>;

// blockIdx: x counts CTAs or pairs, y the CTAs of a pair.
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1)
    sm100_mixed_gemm(const __grid_constant__ Shape::Arguments a) {
    gemm::mixed<Shape>(a);
}
