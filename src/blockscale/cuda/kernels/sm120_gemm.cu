// The block-scaled GEMM of gemm/warp_scaled.cuh, specialised by what the compiler's command line defines: see
// gemm/warp_scaled_shape.cuh.
#include "gemm/warp_scaled.cuh"

using namespace bs;

struct Config {
    static constexpr auto KIND = gemm::ScaledKind::BS_KIND;
    static constexpr auto X_TYPE = ptx::ByteFloat::BS_X_TYPE, W_TYPE = ptx::ByteFloat::BS_W_TYPE;
    static constexpr int W_ROWS = BS_W_ROWS, STAGES = BS_STAGES;
    static constexpr bool GATED = BS_GATED, RAGGED = BS_RAGGED;
    static constexpr gemm::Activation ACTIVATION = gemm::BS_ACTIVATION;
    static constexpr numbers::Dtype OUT = numbers::BS_OUT;

    // Bytes of shared memory, and those that TMA counts for a stage.
    static constexpr int X_BYTES = BS_X_BYTES, W_BYTES = BS_W_BYTES, STAGE_BYTES = BS_STAGE_BYTES;
    static constexpr int STAGE_TX = BS_STAGE_TX;
};

using Shape = gemm::WarpScaledShape<Config>;

extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1)
    sm120_gemm(const __grid_constant__ Shape::Arguments a) {
    gemm::warp_scaled<Shape>(a);
}
