// tcgen05 (sm_100, sm_103) for operands that threads make: 16-bit numbers stored to TMEM, where a product finds its A
// operand, and sums read in the order of mma's fragments.
//
// Lanes. A warp reaches the 32 lanes of TMEM that its number modulo 4 names. Instructions of the shapes 16x128b and 16x256b
// access 16 of them: those from the address on, which is the first lane of the 32 or the one 16 behind it.
#pragma once
#include "ptx/tcgen05.cuh"

namespace bs::ptx::tcgen05 {

// By a whole warp with one address: 16 lanes by 32 columns. Thread t gives, of register r, lane t / 4 + 8 (r % 2) and
// column 4 (r / 2) + t % 4: the A operands of four steps of mma.m16n8k16, one behind the other. TMEM holds them after
// `wait_st`.
BS_DEVICE void st_16x128b(u32 tmem, const u32 (&d)[16]) {
    BS_PTX(tcgen05_st_16x128b(tmem, d, 16),
           "tcgen05.st.sync.aligned.16x128b.x8.b32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16};" ::"r"(
               tmem),
           "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]), "r"(d[4]), "r"(d[5]), "r"(d[6]), "r"(d[7]), "r"(d[8]), "r"(d[9]),
           "r"(d[10]), "r"(d[11]), "r"(d[12]), "r"(d[13]), "r"(d[14]), "r"(d[15])
           : "memory");
}

// By a whole warp: what it has stored so far is in TMEM, and another thread may be told.
BS_DEVICE void wait_st() { BS_PTX(tcgen05_wait_st(), "tcgen05.wait::st.sync.aligned;" ::: "memory"); }

// By a whole warp with one address: 16 lanes by 32 columns. Thread t gets, as register r, lane t / 4 + 8 (r / 2 % 2) and
// column 8 (r / 4) + 2 (t % 4) + r % 2: the sums of four instructions mma.m16n8k16. Valid after `wait_ld`.
BS_DEVICE void ld_16x256b(u32 (&d)[16], u32 tmem) {
    BS_PTX(tcgen05_ld_16x256b(d, 16, tmem),
           "tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, [%16];"
           : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]), "=r"(d[8]),
             "=r"(d[9]), "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]), "=r"(d[14]), "=r"(d[15])
           : "r"(tmem));
}

#define BS_TCGEN05_MMA(GROUP)                                                                                      \
    BS_PTX(tcgen05_mma_f16(CTAS, d, a, b, idesc, accumulate),                                                      \
           "{.reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::" GROUP ".kind::f16 [%0], [%1], %2, %3, p;}" ::"r"(d), \
           "r"(a), "l"(b), "r"(idesc), "r"(u32(accumulate))                                                         \
           : "memory")

// By one thread: d = a b, or d += a b where `accumulate`, of 16-bit floats and 16 k. a is TMEM: lane i has row i of A, a
// column two numbers along k, so that 16 k take eight columns; b is a matrix descriptor. With two CTAS, each CTA's TMEM
// has its half of A's rows.
template <int CTAS>
BS_DEVICE void mma_f16(u32 d, u32 a, u64 b, u32 idesc, bool accumulate) {
    if constexpr (CTAS == 1)
        BS_TCGEN05_MMA("1");
    else
        BS_TCGEN05_MMA("2");
}

#undef BS_TCGEN05_MMA

// The instruction descriptor: float32 sums of bfloat16, or of float16; D is M x N, with two CTAS of the pair.
constexpr u32 instruction_f16(bool is_bfloat16, int m, int n) {
    return 1u << 4 | u32(is_bfloat16) << 7 | u32(is_bfloat16) << 10 | u32(n / 8) << 17 | u32(m / 16) << 24;
}

template <int CTAS>
constexpr bool is_legal_f16(int m, int n) {
    return m == 128 * CTAS && n % (16 * CTAS) == 0 && n >= 16 * CTAS && n <= 256;
}

static_assert(instruction_f16(true, 128, 128) == 0x08200490u, "");
static_assert(instruction_f16(false, 256, 256) == 0x10400010u, "");

}  // namespace bs::ptx::tcgen05
