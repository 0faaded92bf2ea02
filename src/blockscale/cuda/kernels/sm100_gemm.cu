// The block-scaled GEMM of gemm/block_scaled.cuh, specialised by what the compiler's command line defines: see
// gemm/block_scaled_shape.cuh.
#include "gemm/block_scaled.cuh"

using namespace bs;

struct Config {
    static constexpr auto KIND = ptx::tcgen05::Kind::BS_KIND;
    static constexpr auto X_TYPE = ptx::tcgen05::Type::BS_X_TYPE, W_TYPE = ptx::tcgen05::Type::BS_W_TYPE;
    static constexpr int MMA_N = BS_MMA_N, CTAS = BS_CTAS, PANELS = BS_PANELS, STAGES = BS_STAGES;
    static constexpr bool MULTICAST = BS_MULTICAST, GATED = BS_GATED, RAGGED = BS_RAGGED;
    static constexpr gemm::Activation ACTIVATION = gemm::BS_ACTIVATION;
    static constexpr numbers::Dtype OUT = numbers::BS_OUT;

    // Columns of TMEM.
    static constexpr int ACCUMULATORS = BS_ACCUMULATORS, SHARED_COLUMNS = BS_SHARED_COLUMNS;
    static constexpr int SCALE_COLUMN = BS_SCALE_COLUMN, SCALE_SETS = BS_SCALE_SETS;

    // Bytes of shared memory, and those that TMA counts for a stage of a CTA.
    static constexpr int X_BYTES = BS_X_BYTES, W_BYTES = BS_W_BYTES, STAGE_BYTES = BS_STAGE_BYTES;
    static constexpr int STAGE_TX = BS_STAGE_TX;
};

using Shape = gemm::BlockScaledShape<Config>;

// blockIdx: x counts CTAs or pairs, y the CTAs of a pair.
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1)
    sm100_gemm(const __grid_constant__ Shape::Arguments a) {
    gemm::block_scaled<Shape>(a);
}
