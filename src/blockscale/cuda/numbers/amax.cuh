// The largest finite magnitude, as bits: they order like the magnitudes, so the maximum is exact and the
// same in whatever order it is taken.
#pragma once
#include "numbers/run.cuh"

namespace bs::numbers {

template <class Numbers, int COUNT>
BS_DEVICE u32 finite_amax(const Run<Numbers, COUNT>& run) {
    u32 largest = run.largest(0, COUNT);
    if (largest < INFINITE_BITS) return largest;
    largest = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const u32 bits = bits_of(magnitude(run[i]));
        if (bits < INFINITE_BITS) largest = larger(largest, bits);
    }
    return largest;
}

// Of all threads of the CTA, in all of them.
template <int THREADS>
BS_DEVICE u32 largest_of_all(u32 value) {
    __shared__ u32 of_warp[THREADS / 32];
    value = __reduce_max_sync(0xffffffffu, value);
    __syncthreads();  // what an earlier call left has been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) value = larger(value, of_warp[i]);
    return value;
}

}  // namespace bs::numbers
