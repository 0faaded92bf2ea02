// Small kernels that the emulator and a GPU both run: one instruction family at a time, with descriptors, tensor maps and
// coordinates that the host chooses, and mistakes where it asks for them. One entry, so that they are compiled at once.
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/pdl.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

using namespace bs;

enum Part { COPY_BOX, MULTIPLY, FRAGMENTS, PIPELINE, EXCHANGE };

enum Mistake {
    NONE,
    NO_PROXY_FENCE,      // generic stores that wgmma reads
    WRONG_PHASE,         // waits for a phase that has completed before
    TOO_FEW_BYTES,       // are expected
    TOO_MANY_BYTES,
    MISSING_ARRIVAL,
    NO_WAIT_FOR_EMPTY,   // a stage is overwritten while it is read
    NO_WGMMA_WAIT,       // sums are read before they have come
    NO_WGMMA_FENCE,
    NO_INIT_FENCE,       // the async proxy does not see the barrier
    EARLY_EXIT,          // a CTA ends while the other one still sends to it
    NO_CTA_BARRIER,      // shared memory is read before another thread's store
    NO_COPY_WAIT,        // shared memory is read before cp.async has come
    UNALIGNED_COPY,
    ONE_WARP_SHORT,      // a named barrier that not all come to
    EMPTY_TOO_SOON,      // a barrier counts fewer arrivals than there are readers
    BEYOND_THE_END,      // of shared memory
    NO_FLAG,             // global memory is read before another CTA's store
    NO_GLOBAL_FENCE,     // a bulk copy reads what threads stored in global memory
};

struct alignas(64) MicroArguments {
    TensorMap map;
    const u8* in;
    u8* out;
    u64 descriptor;
    int coordinates[3], rank;
    int bytes;  // of shared memory that are filled or shown
    int box_bytes, is_bfloat16, mistake, k_tiles, part;
};

BS_DEVICE u8* aligned_memory() {
    u8* memory = ptx::dynamic_shared();
    return memory + (-ptx::shared_address(memory) & 1023);
}

BS_DEVICE void fill(u8* memory, const u8* from, int bytes) {
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        *reinterpret_cast<uint4*>(memory + i) = *reinterpret_cast<const uint4*>(from + i);
}
BS_DEVICE void show(u8* to, const u8* memory, int bytes) {
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(memory + i);
}

// A box of any map into shared memory that held `in`.
BS_DEVICE void copy_box(const MicroArguments& a) {
    __shared__ u64 barrier;
    u8* memory = aligned_memory();
    const u32 to = ptx::shared_address(memory), full = ptx::shared_address(&barrier);
    fill(memory, a.in, a.bytes);
    ptx::tma::fence_after_stores();
    if (threadIdx.x == 0) ptx::mbarrier_init(full, 1), ptx::mbarrier_init_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(full, a.box_bytes);
        if (a.rank == 2)
            ptx::tma::load(to, a.map, a.coordinates[0], a.coordinates[1], full);
        else
            ptx::tma::load(to, a.map, a.coordinates[0], a.coordinates[1], a.coordinates[2], full);
    }
    ptx::mbarrier_wait(full, 0);
    show(a.out, memory, a.bytes);
}

template <class Pair>
BS_DEVICE void multiply_pair(const MicroArguments& a, u32 memory) {
    float d[8][4];
    u32 w[4];
    const u32* from = reinterpret_cast<const u32*>(a.in + a.bytes);
    for (int i = 0; i < 4; i++) w[i] = from[4 * threadIdx.x + i];
    for (int i = 0; i < 32; i++) d[i / 4][i % 4] = float(int(threadIdx.x) - i);
    ptx::wgmma_fence();
    ptx::Wgmma<Pair, 64>::add(d, w, a.descriptor + (memory >> 4));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    float* to = reinterpret_cast<float*>(a.out);
    for (int i = 0; i < 32; i++) to[32 * threadIdx.x + i] = d[i / 4][i % 4];
}

// One wgmma by any descriptor, whose start counts from the first 1024 bytes.
BS_DEVICE void multiply(const MicroArguments& a) {
    u8* memory = aligned_memory();
    fill(memory, a.in, a.bytes);
    ptx::tma::fence_after_stores();
    __syncthreads();
    const u32 base = ptx::shared_address(memory) & 0x3ffff;
    a.is_bfloat16 ? multiply_pair<ptx::BFloat16x2>(a, base) : multiply_pair<ptx::Float16x2>(a, base);
}

// ldmatrix, mma.sync and stmatrix: sums as bfloat16.
BS_DEVICE void fragments(const MicroArguments& a) {
    u8* memory = aligned_memory();
    fill(memory, a.in, 1024);
    __syncthreads();
    const int lane = threadIdx.x;
    u32 w[4], x[4], pairs[4];
    ptx::ldmatrix_x4(w, ptx::shared_address(memory) + 16 * (lane ^ 5));
    ptx::ldmatrix_x4(x, ptx::shared_address(memory) + 512 + 16 * (lane ^ 9));
    float c[4], d[4];
    ptx::mma_m16n8k16_first<ptx::BFloat16x2>(c, w, x[0], x[1]);
    for (int i = 0; i < 4; i++) d[i] = c[i];
    ptx::mma_m16n8k16<ptx::BFloat16x2>(d, w, x[2], x[3]);
    for (int i = 0; i < 2; i++) {
        pairs[i] = ptx::BFloat16x2::from_floats(c[2 * i], c[2 * i + 1]);
        pairs[2 + i] = ptx::BFloat16x2::from_floats(d[2 * i], d[2 * i + 1]);
    }
    __syncwarp();
    ptx::stmatrix_x4_transposed(ptx::shared_address(memory) + 16 * (lane ^ 3), pairs);
    __syncthreads();
    show(a.out, memory, 1024);
}

constexpr int STAGES = 2, ROWS = 32, PANEL = ROWS * 128, CTAS = 2, CONSUMERS = 128;

// A ring in small: every CTA of a cluster of two sends half of the rows to both. blockIdx.y is the rank.
struct Pipeline {
    const MicroArguments& a;
    u32 stages, barriers;
    int rank;

    BS_DEVICE bool errs(int mistake) const { return a.mistake == mistake; }
    BS_DEVICE u32 full(int slot) const { return barriers + 8 * slot; }
    BS_DEVICE u32 empty(int slot) const { return barriers + 8 * (STAGES + slot); }

    BS_DEVICE void initialise() const {
        for (int i = 0; i < STAGES; i++) {
            ptx::mbarrier_init(full(i), errs(MISSING_ARRIVAL) ? 2 : 1);
            ptx::mbarrier_init(empty(i), errs(EMPTY_TOO_SOON) ? 1 : 4 * CTAS);
        }
        if (!errs(NO_INIT_FENCE)) ptx::mbarrier_init_fence();
    }

    BS_DEVICE void produce() const {
        const int wrong = errs(TOO_FEW_BYTES) ? -1024 : errs(TOO_MANY_BYTES) ? 1024 : 0;
        for (int i = 0; i < a.k_tiles; i++) {
            const int slot = i % STAGES, parity = i / STAGES % 2;
            if (!errs(NO_WAIT_FOR_EMPTY)) ptx::mbarrier_wait(empty(slot), parity ^ 1);
            ptx::mbarrier_arrive_expect_tx(full(slot), PANEL + wrong);
            const u32 to = stages + slot * PANEL + rank * (PANEL / CTAS) + (errs(UNALIGNED_COPY) ? 16 : 0);
            ptx::tma::load_multicast(to, a.map, 64 * i, rank * (ROWS / CTAS), full(slot), 3);
        }
    }

    BS_DEVICE void consume(float (&d)[4][4]) const {
        const u32* from = reinterpret_cast<const u32*>(a.in);
        for (int i = 0; i < a.k_tiles; i++) {
            const int slot = i % STAGES, parity = errs(WRONG_PHASE) ? 0 : i / STAGES % 2;
            u32 w[4][4];
            for (int j = 0; j < 16; j++) w[j / 4][j % 4] = from[(i * CONSUMERS + threadIdx.x) * 16 + j];
            ptx::mbarrier_wait(full(slot), parity);
            if (!errs(NO_WGMMA_FENCE)) ptx::wgmma_fence();
            const u32 x = ptx::panel_word(stages + slot * PANEL);
            for (int j = 0; j < 4; j++)
                ptx::Wgmma<ptx::BFloat16x2, ROWS>::add(d, w[j], ptx::panel_descriptor(x + j * ptx::NEXT_K16));
            ptx::wgmma_commit();
            if (!errs(NO_WGMMA_WAIT)) ptx::wgmma_wait<0>();
            if (threadIdx.x % 32 == 0)
                for (int cta = 0; cta < CTAS; cta++) ptx::mbarrier_arrive_at(empty(slot), cta);
        }
    }
};

BS_DEVICE void pipeline(const MicroArguments& a) {
    __shared__ u64 barriers[2 * STAGES];
    const int rank = blockIdx.y;
    const Pipeline p{a, ptx::shared_address(aligned_memory()), ptx::shared_address(barriers), rank};
    if (threadIdx.x == 0) p.initialise();
    ptx::cluster_sync();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) p.produce();
        __syncwarp();
    } else {
        float d[4][4];
        for (int i = 0; i < 16; i++) d[i / 4][i % 4] = 0.0f;
        p.consume(d);
        float* to = reinterpret_cast<float*>(a.out) + (rank * CONSUMERS + threadIdx.x) * 16;
        for (int i = 0; i < 16; i++) to[i] = d[i / 4][i % 4];
        if (p.errs(ONE_WARP_SHORT) && threadIdx.x >= 32) ptx::bar_sync(3, CONSUMERS);
        if (p.errs(NO_WGMMA_WAIT)) ptx::wgmma_wait<0>();
    }
    if (!p.errs(EARLY_EXIT) || rank == 0) ptx::cluster_sync();
}

// Threads pass numbers on through shared memory, by stores, cp.async and DSMEM; then wgmma reads what threads stored, and
// sums that they store in global memory come back by a bulk copy.
BS_DEVICE void exchange(const MicroArguments& a) {
    u8* memory = aligned_memory();
    u32* words = reinterpret_cast<u32*>(memory);
    const u32* from = reinterpret_cast<const u32*>(a.in);
    const int thread = threadIdx.x, rank = blockIdx.y;
    words[thread] = from[128 * rank + thread];
    ptx::cp_async(ptx::shared_address(words + 128 + 4 * thread), from + 256 + 4 * thread);
    ptx::cp_async_commit();
    if (a.mistake != NO_COPY_WAIT) ptx::cp_async_wait<0>();
    if (a.mistake != NO_CTA_BARRIER) __syncthreads();
    u32 sum = words[127 - thread] + words[128 + thread];
    if (a.mistake == BEYOND_THE_END) {
        u32 word[1];
        ptx::load_shared(word, ptx::shared_address(memory) + (1 << 20));
        sum += word[0];
    }
    if (a.mistake == NO_FLAG) {
        u32* told = reinterpret_cast<u32*>(a.out);
        if (rank == 0) told[thread] = sum;
        ptx::cluster_sync_relaxed();  // orders nothing
        if (rank == 1) sum += told[thread];
    }
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncthreads();
    words[thread] = sum;
    ptx::cluster_sync();
    const float4 other = ptx::load_dsmem(ptx::shared_address(words + thread / 4 * 4), rank ^ 1);
    ptx::cluster_sync();
    reinterpret_cast<float4*>(a.out)[128 * rank + thread] = other;
    fill(memory, a.in, 8192);
    if (a.mistake != NO_PROXY_FENCE) ptx::tma::fence_after_stores();
    __syncthreads();
    float d[4][4];
    for (int i = 0; i < 16; i++) d[i / 4][i % 4] = 0.0f;
    const u32 w[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    ptx::wgmma_fence();
    ptx::Wgmma<ptx::BFloat16x2, 32>::add(d, w, ptx::panel_descriptor(ptx::panel_word(ptx::shared_address(memory))));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    float* to = reinterpret_cast<float*>(a.out) + 1024 + (128 * rank + thread) * 16;
    for (int i = 0; i < 16; i++) to[i] = d[i / 4][i % 4];
    constexpr int SUMS_BYTES = 128 * 16 * 4;
    __shared__ u64 barrier;
    const u32 full = ptx::shared_address(&barrier);
    if (thread == 0) ptx::mbarrier_init(full, 1), ptx::mbarrier_init_fence();
    __syncthreads();
    u8* sums = a.out + 4096 + rank * SUMS_BYTES;
    if (thread == 0) {
        if (a.mistake != NO_GLOBAL_FENCE) ptx::tma::fence_after_stores_elsewhere();
        ptx::mbarrier_arrive_expect_tx(full, SUMS_BYTES);
        ptx::tma::load_bytes(ptx::shared_address(memory), sums, SUMS_BYTES, full);
    }
    ptx::mbarrier_wait(full, 0);
    show(sums + 2 * SUMS_BYTES, memory, SUMS_BYTES);
}

// blockIdx.y is the rank in a cluster.
extern "C" __global__ void __launch_bounds__(160) micro(const __grid_constant__ MicroArguments a) {
    switch (a.part) {
        case COPY_BOX: return copy_box(a);
        case MULTIPLY: return multiply(a);
        case FRAGMENTS: return fragments(a);
        case PIPELINE: return pipeline(a);
        default: return exchange(a);
    }
}
