// The largest finite magnitude, as bits: they order like the magnitudes, so the maximum is exact and the
// same in whatever order it is taken.
#pragma once
#include "memory.cuh"
#include "numbers.cuh"

// COUNT adjacent numbers of a row.
template <class Numbers, int COUNT>
class Run {
 public:
    EXACT Run(const u8* row, u32 unit) {
        load_bytes<COUNT * Numbers::BYTES>(words_, row + size_t(unit) * (COUNT * Numbers::BYTES));
    }
    EXACT float operator[](int index) const { return Numbers::get(words_, index); }

 private:
    u32 words_[COUNT * Numbers::BYTES / 4];
};

template <class Numbers, int COUNT>
EXACT u32 finite_amax(const u8* row, u32 unit) {
    const Run<Numbers, COUNT> run(row, unit);
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const u32 bits = bits_of(run[i]) & 0x7fffffffu;
        largest = larger(largest, bits < INFINITE_BITS ? bits : 0u);
    }
    return largest;
}

// Of all threads of the block, in all of them.
template <int THREADS>
EXACT u32 largest_of_all(u32 value) {
    __shared__ u32 of_warp[THREADS / 32];
    value = __reduce_max_sync(0xffffffffu, value);
    __syncthreads();  // what an earlier call left has been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) value = larger(value, of_warp[i]);
    return value;
}
