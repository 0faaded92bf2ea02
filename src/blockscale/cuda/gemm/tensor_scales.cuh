// Tensor scales are needed last, in the epilogue, when nothing is left to hide their latency: cp.async fetches them
// first. They have 16 bytes of shared memory for themselves, since the compiler may widen a load of their neighbours to
// 16 bytes, which would meet the copy.
#pragma once
#include "gemm/shape.cuh"
#include "ptx/cp_async.cuh"

namespace bs::gemm {

template <class Shape>
BS_DEVICE float* tensor_scales() {
    __shared__ __align__(16) float memory[4];
    return memory;
}

template <class Shape>
BS_DEVICE void fetch_tensor_scales(const typename Shape::Arguments& a, int group) {
    if (threadIdx.x == Shape::THREADS - 1)
#pragma unroll
        for (int i = 0; i < Shape::BRANCHES; i++)
            if (a.weight[i].tensor_scale)
                ptx::cp_async_float(ptx::shared_address(tensor_scales<Shape>() + i), a.weight[i].tensor_scale + group);
    ptx::cp_async_commit();
}

}  // namespace bs::gemm
