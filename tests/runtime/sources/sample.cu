// A kernel for testing what builds, keeps, reads and launches kernels.
#include "sample.cuh"

extern "C" __global__ void __launch_bounds__(128) sample(const __grid_constant__ Arguments a) {
    __shared__ float turned[128];
    unsigned x = 0;
#if READS_EARLY || !WAITS
    x = a.in[threadIdx.x];
#endif
#if COPIES_EARLY || TMA_EARLY
    __shared__ __align__(16) unsigned copied[128];
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(copied));
#endif
#if COPIES_EARLY
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 4 * threadIdx.x), "l"(a.in + threadIdx.x));
#endif
#if TMA_EARLY  // nobody waits for it: this is compiled and never run
    __shared__ unsigned long long barrier;
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(to),
                     "l"(a.in), "r"(static_cast<unsigned>(__cvta_generic_to_shared(&barrier))));
#endif
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
#if COPIES_EARLY || TMA_EARLY
    x = copied[threadIdx.x];
#elif !READS_EARLY
    x = a.in[threadIdx.x];
#endif
#endif
    turned[threadIdx.x] = sum[0];
    __syncthreads();
    a.out[threadIdx.x] = FACTOR * (turned[127 - threadIdx.x] + sum[1] + sum[2] + sum[3] + x);
}
