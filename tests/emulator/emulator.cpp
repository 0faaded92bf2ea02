// The emulator as one library: kernels are compiled apart (kernel.cpp) and linked with it.
#include "access_hooks.h"
#include "inspect.h"
#include "tmem_twins.h"

HostIndex threadIdx, blockIdx, blockDim, gridDim;

namespace bs::emulator {

struct LaunchFacts {
    unsigned grid[3], threads, cluster, shared, resident, seed, timing;
};

static std::string last_failure;
static Counts last_counts;

// Null, or what went wrong.
static const char* launch(const Kernel& kernel, const LaunchFacts& facts, const void* arguments) {
    const Launch wanted{{facts.grid[0], facts.grid[1], facts.grid[2]}, facts.threads, facts.cluster, facts.shared,
                        facts.resident, facts.seed, Timing(facts.timing)};
    Machine own(kernel, wanted, arguments);
    machine = &own;
    gridDim = wanted.grid, blockDim = {wanted.threads, 1, 1};
    const char* failed = nullptr;
    try {
        run_launch();
    } catch (const std::runtime_error& error) {
        last_failure = error.what();
        failed = last_failure.c_str();
    }
    for (auto& cluster : own.clusters)
        for (auto& cta : cluster->ctas)
            for (auto& thread : cta->threads) thread->fiber.end();
    last_counts = own.counts;
    machine = nullptr;
    return failed;
}

}  // namespace bs::emulator

extern "C" const char* emulated_launch(void (*run)(const void*), void* begin, void* end,
                                       const bs::emulator::LaunchFacts* facts, const void* arguments) {
    return bs::emulator::launch({run, static_cast<bs::u8*>(begin), static_cast<bs::u8*>(end)}, *facts, arguments);
}

extern "C" const bs::emulator::Counts* emulated_counts() { return &bs::emulator::last_counts; }

extern "C" int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, const void* address, const bs::u64* sizes,
                                      const bs::u64* strides, const unsigned* box, const unsigned* element_strides,
                                      int interleave, int swizzle, int l2, int fills_nan) {
    return bs::emulator::encode_tiled(map, type, rank, address, sizes, strides, box, element_strides, interleave,
                                      swizzle, l2, fills_nan);
}
