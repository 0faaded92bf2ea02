// A product by tcgen05 of kind::f16, in small: fragments that threads store to TMEM, times rows in shared memory, and sums
// as fragments. The kernel can be told to make a mistake.
#include "ptx/elect.cuh"
#include "ptx/tcgen05_decoded.cuh"
#include "ptx/tcgen05_descriptors.cuh"
#include "ptx/tma.cuh"

using namespace bs;
namespace tc = bs::ptx::tcgen05;

enum Mistake {
    NONE,
    NO_WAIT_ST,            // products begin before the weights are in TMEM
    NO_FENCE_BEFORE,       // the stores are not ordered before the barrier
    NO_FENCE_AFTER,        // nor the barrier before the product
    STORE_TOO_SOON,        // over weights that a product still reads
    ODD_LANE,              // an address that is no half of the warp's lanes
    OTHER_LANES,           // those of another warp
};

struct alignas(64) F16Arguments {
    const u32* a;  // [warp][half][thread][16]: fragments of mma.m16n8k16, four steps of k
    const u8* b;   // [n][128 bytes]
    u32* out;      // [warp][half][thread][16]: sums as fragments
    u32 idesc;
    int mistake;
};

constexpr int N = 32, A_COLUMN = 64;  // sums have columns 0 to 31

struct F16 {
    const F16Arguments& a;
    u32 shared, tmem, barrier;
    int warp, lane;

    BS_DEVICE bool errs(int mistake) const { return a.mistake == mistake; }
    BS_DEVICE u32 lanes(int half) const { return tc::lane_bits(32 * warp + 16 * half); }

    BS_DEVICE void store() const {
        for (int half = 0; half < 2; half++) {
            u32 d[16];
            for (int i = 0; i < 16; i++) d[i] = a.a[((warp * 2 + half) * 32 + lane) * 16 + i];
            const u32 wrong = errs(ODD_LANE) ? tc::lane_bits(8) : errs(OTHER_LANES) ? tc::lane_bits(32) : 0;
            tc::st_16x128b(tmem + A_COLUMN + (lanes(half) ^ wrong), d);
        }
        if (!errs(NO_WAIT_ST)) tc::wait_st();
        if (!errs(NO_FENCE_BEFORE)) tc::fence_before_thread_sync();
    }

    BS_DEVICE void multiply() const {
        for (int i = 0; i < 4; i++)
            tc::mma_f16<1>(tmem, tmem + A_COLUMN + 8 * i, tc::swizzled_rows(shared) + i * tc::NEXT_32_BYTES, a.idesc,
                           i > 0);
        tc::commit<1>(barrier);
    }

    BS_DEVICE void show() const {
        for (int half = 0; half < 2; half++) {
            u32 d[16];
            tc::ld_16x256b(d, tmem + lanes(half));
            tc::wait_ld(d);
            for (int i = 0; i < 16; i++) a.out[((warp * 2 + half) * 32 + lane) * 16 + i] = d[i];
        }
        tc::fence_before_thread_sync();
    }
};

extern "C" __global__ void __launch_bounds__(128) f16_product(const __grid_constant__ F16Arguments a) {
    __shared__ u64 barrier;
    __shared__ u32 tmem;
    u8* memory = ptx::dynamic_shared();
    memory += -ptx::shared_address(memory) & 1023;
    for (int i = threadIdx.x; i < N * 8; i += blockDim.x)
        *reinterpret_cast<uint4*>(memory + (i ^ (i / 8 & 7)) * 16) = *reinterpret_cast<const uint4*>(a.b + i * 16);
    ptx::tma::fence_after_stores();
    if (threadIdx.x == 0) ptx::mbarrier_init(ptx::shared_address(&barrier), 1), ptx::mbarrier_init_fence();
    if (threadIdx.x < 32) tc::alloc<1>(ptx::shared_address(&tmem), 128);
    tc::fence_before_thread_sync();
    __syncthreads();
    tc::fence_after_thread_sync();
    const F16 f{a, ptx::shared_address(memory), tmem, ptx::shared_address(&barrier), int(threadIdx.x / 32),
                int(threadIdx.x % 32)};
    f.store();
    __syncthreads();
    if (!f.errs(NO_FENCE_AFTER)) tc::fence_after_thread_sync();
    if (threadIdx.x < 32)
        if (ptx::elect_one()) f.multiply();
    __syncwarp();
    if (f.errs(STORE_TOO_SOON)) f.store();
    ptx::mbarrier_wait(f.barrier, 0);
    tc::fence_after_thread_sync();
    f.show();
    __syncthreads();
    tc::fence_after_thread_sync();
    if (threadIdx.x < 32) tc::relinquish_alloc_permit<1>(), tc::dealloc<1>(f.tmem, 128);
}
