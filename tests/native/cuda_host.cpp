// A kernel of the CUDA conversions as a host function. Threads of a CTA are threads, which wait for each other where
// lanes of a warp exchange values and where the CTA synchronises; CTAs run one after the other.
//
//   KERNEL_FILE, KERNEL   a source of blockscale/cuda, and the kernel in it
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "base.cuh"

// Where threads meet; one that returns no longer takes part.
using Barrier = std::barrier<>;
static std::unique_ptr<Barrier> cta_barrier;
static std::vector<std::unique_ptr<Barrier>> warp_barriers;
static uint64_t left_by[1024];

static void sync_cta() { cta_barrier->arrive_and_wait(); }

static void exchange(uint64_t own, uint64_t (&lanes)[32]) {
    Barrier& barrier = *warp_barriers[threadIdx.x / 32];
    left_by[threadIdx.x] = own;
    barrier.arrive_and_wait();
    std::memcpy(lanes, &left_by[threadIdx.x / 32 * 32], sizeof lanes);
    barrier.arrive_and_wait();
}

#include KERNEL_FILE

template <class A>
A argument_of(void (*)(A));
using Arguments = decltype(argument_of(KERNEL));

static void run_cta(const Arguments& a, unsigned threads) {
    cta_barrier = std::make_unique<Barrier>(threads);
    warp_barriers.clear();
    for (unsigned i = 0; i < threads; i += 32) warp_barriers.push_back(std::make_unique<Barrier>(32));
    std::memset(left_by, 0, sizeof left_by);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; ++i)
        all.emplace_back([&a, i] {
            threadIdx = {i, 0, 0};
            KERNEL(a);
            warp_barriers[i / 32]->arrive_and_drop();
            cta_barrier->arrive_and_drop();
        });
    for (std::thread& each : all) each.join();
}

extern "C" void run(const void* arguments, int x, int y, int z, int threads) {
    bs::host::sync_cta = sync_cta;
    bs::host::exchange = exchange;
    gridDim = {unsigned(x), unsigned(y), unsigned(z)};
    Arguments a;
    std::memcpy(&a, arguments, sizeof a);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_cta(a, unsigned(threads));
}

extern "C" size_t size_of_arguments() { return sizeof(Arguments); }
