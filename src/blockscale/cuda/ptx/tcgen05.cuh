// tcgen05 (sm_100, sm_103): products whose sums and scales lie in tensor memory (TMEM), and what moves TMEM.
//
// TMEM has 128 lanes of 512 columns of 32 bits; an address is lane << 16 | column. CTAS is the instruction's cta_group:
// with 2, a pair of CTAs with neighbouring ranks works as one, and a thread of the even CTA issues for both. All
// instructions of a kernel have the same CTAS.
//
// Products and copies are asynchronous. A thread's own cp before its mma, and its mma after mma with the same sums, run
// in order by themselves. For everything else: `commit`, wait at the mbarrier, `fence_after_thread_sync`.
#pragma once
#include "ptx/mbarrier.cuh"

namespace bs::ptx::tcgen05 {

constexpr int LANES = 128, COLUMNS = 512;

BS_DEVICE constexpr u32 lane_bits(int lane) { return u32(lane) << 16; }

// By one whole warp; with two CTAS, by the warp of the same number in both. `columns` is a power of two from 32 on. The
// address of the first column is stored to shared memory, where other warps may read it after a barrier.
template <int CTAS>
BS_DEVICE void alloc(u32 to, int columns) {
    if constexpr (CTAS == 1)
        BS_PTX(tcgen05_alloc(CTAS, to, columns), "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns) : "memory");
    else
        BS_PTX(tcgen05_alloc(CTAS, to, columns), "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns) : "memory");
}

// By one whole warp, before it exits; with two CTAS in both, after the pair has synchronised.
template <int CTAS>
BS_DEVICE void dealloc(u32 tmem, int columns) {
    if constexpr (CTAS == 1)
        BS_PTX(tcgen05_dealloc(CTAS, tmem, columns), "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(columns) : "memory");
    else
        BS_PTX(tcgen05_dealloc(CTAS, tmem, columns), "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(columns) : "memory");
}

// By one whole warp: this CTA allocates no more, and another one may.
template <int CTAS>
BS_DEVICE void relinquish_alloc_permit() {
    if constexpr (CTAS == 1)
        BS_PTX(tcgen05_relinquish(CTAS), "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
    else
        BS_PTX(tcgen05_relinquish(CTAS), "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
}

// TMEM accesses of this thread come before what it does to synchronise with another thread, and after it has done so.
BS_DEVICE void fence_before_thread_sync() { BS_PTX(tcgen05_fence_before(), "tcgen05.fence::before_thread_sync;" ::: "memory"); }
BS_DEVICE void fence_after_thread_sync() { BS_PTX(tcgen05_fence_after(), "tcgen05.fence::after_thread_sync;" ::: "memory"); }

// By one thread: arrives once at the mbarrier when all its mma and cp so far are done.
template <int CTAS>
BS_DEVICE void commit(u32 barrier) {
    if constexpr (CTAS == 1)
        BS_PTX(tcgen05_commit(CTAS, barrier), "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
    else
        BS_PTX(tcgen05_commit(CTAS, barrier), "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}

// The same at the mbarriers that the CTAs with a bit in `ctas` have at this address.
template <int CTAS>
BS_DEVICE void commit_multicast(u32 barrier, u16 ctas) {
    if constexpr (CTAS == 1)
        BS_PTX(tcgen05_commit_multicast(CTAS, barrier, ctas), "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                   barrier),
               "h"(ctas)
               : "memory");
    else
        BS_PTX(tcgen05_commit_multicast(CTAS, barrier, ctas), "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                   barrier),
               "h"(ctas)
               : "memory");
}

// By one thread: 32 rows of 16 bytes of shared memory to four columns of lanes 0-31, and again of lanes 32-63, 64-95
// and 96-127. With two CTAS, each CTA copies from its own shared memory to its own TMEM.
template <int CTAS>
BS_DEVICE void cp_32x128b_warpx4(u32 tmem, u64 descriptor) {
    if constexpr (CTAS == 1)
        BS_PTX(tcgen05_cp_32x128b_warpx4(CTAS, tmem, descriptor), "tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(descriptor) : "memory");
    else
        BS_PTX(tcgen05_cp_32x128b_warpx4(CTAS, tmem, descriptor), "tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(descriptor) : "memory");
}

// The kinds of block-scaled products, and the k of one instruction.
//   MXF8F6F4       elements of 4, 6 or 8 bits in slots of a byte; a ue8m0 scale per 32
//   MXF4           packed e2m1; a ue8m0 scale per 32
//   MXF4NVF4       packed e2m1; a ue4m3 scale per 16
enum class Kind { MXF8F6F4, MXF4, MXF4NVF4 };

// Whether tensor cores may keep a for the next instruction, which then need not read it from shared memory: a
// permission, of which the last of such instructions makes an end.
enum class Keep { NO, FILL, LAST_USE };

#define BS_TCGEN05_MMA(GROUP, KIND_WORDS)                                                                            \
    BS_PTX(tcgen05_mma_block_scale(CTAS, int(KIND), int(KEEP), d, a, b, idesc, a_scale, b_scale, accumulate),        \
           "{.reg .pred p; setp.ne.u32 p, %6, 0; tcgen05.mma.cta_group::" GROUP ".kind::" KIND_WORDS                 \
           " [%0], %1, %2, %3, [%4], [%5], p;}" ::"r"(d),                                                            \
           "l"(a), "l"(b), "r"(idesc), "r"(a_scale), "r"(b_scale), "r"(u32(accumulate))                              \
           : "memory")

#define BS_TCGEN05_MMA_KEEPING(GROUP, KIND_WORDS)                    \
    if constexpr (KEEP == Keep::FILL)                                \
        BS_TCGEN05_MMA(GROUP, KIND_WORDS ".collector::a::fill");     \
    else if constexpr (KEEP == Keep::LAST_USE)                       \
        BS_TCGEN05_MMA(GROUP, KIND_WORDS ".collector::a::lastuse");  \
    else                                                             \
        BS_TCGEN05_MMA(GROUP, KIND_WORDS)

// By one thread: d = a b, or d += a b where `accumulate`. a and b are matrix descriptors, d and the scales TMEM.
template <int CTAS, Kind KIND, Keep KEEP = Keep::NO>
BS_DEVICE void mma_block_scale(u32 d, u64 a, u64 b, u32 idesc, u32 a_scale, u32 b_scale, bool accumulate) {
    if constexpr (KIND == Kind::MXF8F6F4 && CTAS == 1) {
        BS_TCGEN05_MMA_KEEPING("1", "mxf8f6f4.block_scale.block32");
    } else if constexpr (KIND == Kind::MXF8F6F4) {
        BS_TCGEN05_MMA_KEEPING("2", "mxf8f6f4.block_scale.block32");
    } else if constexpr (KIND == Kind::MXF4 && CTAS == 1) {
        BS_TCGEN05_MMA_KEEPING("1", "mxf4.block_scale.block32");
    } else if constexpr (KIND == Kind::MXF4) {
        BS_TCGEN05_MMA_KEEPING("2", "mxf4.block_scale.block32");
    } else if constexpr (CTAS == 1) {
        BS_TCGEN05_MMA_KEEPING("1", "mxf4nvf4.block_scale.block16");
    } else {
        BS_TCGEN05_MMA_KEEPING("2", "mxf4nvf4.block_scale.block16");
    }
}

#undef BS_TCGEN05_MMA_KEEPING
#undef BS_TCGEN05_MMA

#define BS_TMEM_D_8(i)                                                                                        \
    "=r"(d[i]), "=r"(d[i + 1]), "=r"(d[i + 2]), "=r"(d[i + 3]), "=r"(d[i + 4]), "=r"(d[i + 5]), "=r"(d[i + 6]), \
        "=r"(d[i + 7])

// By a whole warp with one address: lane t of a warp whose number is w modulo 4 gets COUNT neighbouring columns of TMEM
// lane 32 w + t, which is the lane that the address must name for t = 0. The registers hold them after `wait_ld`.
BS_DEVICE void ld_32x32b(u32 (&d)[8], u32 tmem) {
    BS_PTX(tcgen05_ld_32x32b(d, 8, tmem),
           "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];" : BS_TMEM_D_8(0) : "r"(tmem));
}
BS_DEVICE void ld_32x32b(u32 (&d)[16], u32 tmem) {
    BS_PTX(tcgen05_ld_32x32b(d, 16, tmem),
           "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, [%16];"
           : BS_TMEM_D_8(0), BS_TMEM_D_8(8)
           : "r"(tmem));
}
BS_DEVICE void ld_32x32b(u32 (&d)[32], u32 tmem) {
    BS_PTX(tcgen05_ld_32x32b(d, 32, tmem),
           "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
           "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];"
           : BS_TMEM_D_8(0), BS_TMEM_D_8(8), BS_TMEM_D_8(16), BS_TMEM_D_8(24)
           : "r"(tmem));
}

#undef BS_TMEM_D_8

// By a whole warp: the registers of its `ld` so far are valid, and their TMEM may be overwritten once another thread has
// been told. The values must not be used before: `ld` names them as outputs, so that a use that stands after this in the
// source could still be moved before it. The array is an operand here, which forbids that.
template <int COUNT>
BS_DEVICE void wait_ld(u32 (&d)[COUNT]) {
    BS_PTX(tcgen05_wait_ld(), "tcgen05.wait::ld.sync.aligned;" ::: "memory");
#ifdef __CUDACC__
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i]));
#endif
}

}  // namespace bs::ptx::tcgen05
