// A plain read of memory: what a product that reads as many bytes of weights cannot beat.
//
// All threads of the GPU load 16 bytes at a time, four of them under way, past the L1 cache.
struct Arguments {
    const uint4* from;
    long long count;  // of 16 bytes
    unsigned* to;     // is never written, but the compiler cannot know
    unsigned never;
};

static __device__ uint4 load(const uint4* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

static __device__ unsigned folded(uint4 value) { return value.x ^ value.y ^ value.z ^ value.w; }

extern "C" __global__ void __launch_bounds__(BS_THREADS) read(const __grid_constant__ Arguments a) {
#if BS_OVERLAP
    // Nothing here depends on the kernel before, so the next one may start at once.
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const long long stride = (long long)gridDim.x * BS_THREADS;
    const long long first = (long long)blockIdx.x * BS_THREADS + threadIdx.x;
    unsigned sum = 0;
    for (long long at = first; at < a.count; at += 4 * stride) {
        uint4 values[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (at + i * stride < a.count) values[i] = load(a.from + at + i * stride);
#pragma unroll
        for (int i = 0; i < 4; i++) sum ^= folded(values[i]);
    }
    if (sum == a.never && a.count < 0) *a.to = sum;
}
