// A kernel of the CUDA conversions as a host function. Its threads are threads, which meet where lanes of a
// warp exchange numbers and where a block synchronises; blocks run one after the other.
//
//   KERNEL_FILE, KERNEL   a source of blockscale/cuda, and the kernel in it
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

struct Index {
    unsigned x, y, z;
};
static Index blockIdx, gridDim;
static thread_local Index threadIdx;

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};

#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __cvta_generic_to_shared(pointer) size_t(pointer)
#define __threadfence()

static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T>
T __ldg(const T* from) {
    if (uintptr_t(from) % sizeof(T)) __builtin_trap();  // a GPU reads aligned words alone
    return *from;
}
static unsigned atomicMax(unsigned* at, unsigned value) {
    const unsigned before = *at;
    *at = before > value ? before : value;
    return before;
}
static unsigned atomicAdd(unsigned* at, unsigned value) { return (*at += value) - value; }

// Where threads meet; one that returns no longer takes part.
using Barrier = std::barrier<>;
static std::unique_ptr<Barrier> block_barrier;
static std::vector<std::unique_ptr<Barrier>> warp_barriers;
static uint64_t left_by[1024];

static void __syncthreads() { block_barrier->arrive_and_wait(); }

// Calls work while every lane's value lies in `left_by`.
template <class T, class Work>
auto with_all_lanes(T value, Work work) {
    Barrier& barrier = *warp_barriers[threadIdx.x / 32];
    std::memcpy(&left_by[threadIdx.x], &value, sizeof value);
    barrier.arrive_and_wait();
    const auto result = work(&left_by[threadIdx.x / 32 * 32]);
    barrier.arrive_and_wait();
    return result;
}

#define BS_HAS_LANES
template <class T>
T across(T value, int distance) {
    return with_all_lanes(value, [&](const uint64_t* lanes) {
        T other;
        std::memcpy(&other, &lanes[threadIdx.x % 32 ^ distance], sizeof other);
        return other;
    });
}
static unsigned __reduce_max_sync(unsigned, unsigned value) {
    return with_all_lanes(value, [&](const uint64_t* lanes) {
        unsigned largest = 0;
        for (int i = 0; i < 32; ++i) largest = unsigned(lanes[i]) > largest ? unsigned(lanes[i]) : largest;
        return largest;
    });
}
static int lane_number() { return threadIdx.x % 32; }
static bool any_lane(bool value) { return __reduce_max_sync(0, value) != 0; }

#include KERNEL_FILE

static void run_block(const Arguments& a, unsigned threads) {
    block_barrier = std::make_unique<Barrier>(threads);
    warp_barriers.clear();
    for (unsigned i = 0; i < threads; i += 32) warp_barriers.push_back(std::make_unique<Barrier>(32));
    std::memset(left_by, 0, sizeof left_by);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; ++i)
        all.emplace_back([&a, i] {
            threadIdx = {i, 0, 0};
            KERNEL(a);
            warp_barriers[i / 32]->arrive_and_drop();
            block_barrier->arrive_and_drop();
        });
    for (std::thread& each : all) each.join();
}

extern "C" void run(const void* arguments, int x, int y, int z, int threads) {
    gridDim = {unsigned(x), unsigned(y), unsigned(z)};
    Arguments a;
    std::memcpy(&a, arguments, sizeof a);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block(a, unsigned(threads));
}

extern "C" size_t size_of_arguments() { return sizeof(Arguments); }
