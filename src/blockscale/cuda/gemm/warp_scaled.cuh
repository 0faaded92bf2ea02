// A GEMM of two block-scaled operands by mma.sync (sm_120, sm_121):
//
//     out[m, n] = sum over k of x[m, k] * x_scale[m, k / block] * w[n, k] * w_scale[n, k / block]
//
// Operands. TMA brings panels of x and w and blocked scales to shared memory, as gemm/block_scaled.cuh has them too. Warps
// take fragments by ldmatrix, and scales a word at a time.
//
// Work. A CTA has one warp that loads and M_WARPS x N_WARPS that multiply and store. CTAs are persistent and take output
// tiles in turn; while the warps store a tile, the first stages of the next one come.
#pragma once
#include "gemm/clear_rows.cuh"
#include "gemm/warp_scaled_store.cuh"
#include "ptx/elect.cuh"
#include "ptx/pdl.cuh"

namespace bs::gemm {

template <class Shape>
BS_DEVICE void warp_scaled(const typename Shape::Arguments& a) {
    using Ring = BlockScaledRing<Shape>;
    __shared__ u64 barriers[Ring::BARRIERS];
    u8* memory = ptx::dynamic_shared();
    memory += -ptx::shared_address(memory) & 1023;  // where panels with TMA's 128-byte swizzle may start
    int* starts = reinterpret_cast<int*>(memory + Shape::STAGES * Shape::STAGE_BYTES);
    const Ring ring{ptx::shared_address(memory), ptx::shared_address(barriers)};
    if (threadIdx.x == 0) {
        ring.initialise();
        ptx::mbarrier_init_fence();
    }
    __syncthreads();
    ptx::trigger_dependents();
    ptx::wait_for_prerequisites();
    if constexpr (Shape::RAGGED) {
        find_starts<Shape, true>(a, starts);
        clear_rows_from<Shape>(a, starts[a.groups], blockIdx.x, gridDim.x);
    }
    const WholeTileOrder<Shape> order(a, starts);
    if (threadIdx.x >= Shape::CONSUMERS) {
        if (ptx::elect_one()) ring.produce(a, order, 0);
        return;
    }
    WarpScaledMainloop<Shape> mainloop(ring);
    const int tiles = order.count();
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const OutputTile tile = order.at(index, 0);
        mainloop.run(a, tile);
        WarpScaledStore<Shape>{a, mainloop, tile}.run();
    }
}

}  // namespace bs::gemm
