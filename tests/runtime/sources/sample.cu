// A kernel for testing what builds, keeps, reads and launches kernels.
#include "sample.cuh"

extern "C" __global__ void __launch_bounds__(128) sample(const __grid_constant__ Arguments a) {
    __shared__ float turned[128];
    unsigned x = a.in[threadIdx.x];
    float sum[4] = {0, 0, 0, 0};
#if SPILLS
    float indexed[300];
    for (int i = 0; i < 300; ++i) indexed[i] = a.out[i * threadIdx.x];
    sum[0] += indexed[x % 300];
#endif
#if MULTIPLIES
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(x));
#endif
#if WAITS
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    turned[threadIdx.x] = sum[0];
    __syncthreads();
    a.out[threadIdx.x] = FACTOR * (turned[127 - threadIdx.x] + sum[1] + sum[2] + sum[3] + x);
}
