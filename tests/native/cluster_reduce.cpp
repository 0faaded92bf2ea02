// How blocks of a cluster sum and store (stream_reduce.cuh), one thread after the other on the host. Counts what
// each reads of the others' shared memory: a load whose value nobody stores need not be over when its block ends.
//
//     cluster_reduce      "right" for each number of columns, or what is not
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
template <class T>
T min(T a, T b) { return a < b ? a : b; }
template <class T>
T max(T a, T b) { return a < b ? b : a; }
static float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
static unsigned __shfl_sync(unsigned, unsigned value, int) { return value; }  // of what is not called
static void __syncthreads() {}

#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __cvta_generic_to_shared(pointer) uintptr_t(pointer)

// Instructions of the GPU are left out: none that runs here gives a value but the loads, which are below.
#define asm(...)
#define volatile(...) ("")

#define load_of_block load_on_a_gpu
#include "ptx/cluster.cuh"
#undef load_of_block

static std::vector<std::vector<float>> left_by;  // each block's sums
static long loads;

BS_DEVICE float4 load_of_block(u32 address, int block) {
    loads++;
    const std::vector<float>& from = left_by[block];
    const float* at = from.data() + (address - u32(uintptr_t(left_by[blockIdx.y].data()))) / 4;
    return {at[0], at[1], at[2], at[3]};
}

#include "gemm/reduce.cuh"

static bool check(int n) {
    std::vector<float> out(COLUMNS * n, NAN);
    Arguments a{};
    a.m = COLUMNS, a.n = n, a.out = out.data(), a.out_stride = n, a.out_dtype = FLOAT32;
    left_by.assign(SPLITS, std::vector<float>(COLUMNS * SUM_PITCH));
    for (int s = 0; s < SPLITS; s++)
        for (int i = 0; i < COLUMNS * SUM_PITCH; i++) left_by[s][i] = float(i << (s ? 12 : 0));
    loads = 0;
    for (blockIdx.x = 0; blockIdx.x * ROWS < unsigned(n); blockIdx.x++)
        for (blockIdx.y = 0; blockIdx.y < SPLITS; blockIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++)
                reduce_and_store(a, left_by[blockIdx.y].data(), Rows{0, 0, COLUMNS}, 0, COLUMNS);
    for (int row = 0; row < COLUMNS; row++)
        for (int column = 0; column < n; column++) {
            const int i = row * SUM_PITCH + column % ROWS;
            if (out[row * n + column] != float(i) + float(i << 12)) return std::printf("%d: wrong sums\n", n), false;
        }
    const long needed = long(COLUMNS) * ((n + 3) / 4) * SPLITS;
    if (loads != needed) return std::printf("%d: %ld loads, %ld are stored\n", n, loads, needed), false;
    return true;
}

int main() {
    bool right = true;
    for (const int n : {1, 3, 4, 20, ROWS - 4, ROWS, ROWS + 7, 2 * ROWS + 12}) right = check(n) && right;
    std::puts(right ? "right" : "");
    return right ? 0 : 1;
}
