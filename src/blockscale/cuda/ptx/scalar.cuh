// Instructions on 32-bit registers that C++ has no operator for.
#pragma once
#include "base.cuh"

namespace bs::ptx {

// Four of the eight bytes of (high, low), the lowest digit of `selector` first: byte 0 to 7; with 8 added, the top
// bit of that byte in all eight places.
BS_DEVICE u32 prmt(u32 low, u32 high, u32 selector) {
#ifdef __CUDACC__
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(selector));
    return d;
#else
    const u64 all = u64(high) << 32 | low;
    u32 bytes = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 digit = selector >> 4 * i & 15, byte = u32(all >> 8 * (digit & 7)) & 0xffu;
        bytes |= (digit < 8 ? byte : byte >> 7 ? 0xffu : 0u) << 8 * i;
    }
    return bytes;
#endif
}

// (a & mask) | (b & ~mask), by one lop3.
BS_DEVICE u32 merge_bits(u32 a, u32 b, u32 mask) {
#ifdef __CUDACC__
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xB8;" : "=r"(d) : "r"(b), "r"(mask), "r"(a));
    return d;
#else
    return (a & mask) | (b & ~mask);
#endif
}

// By an instruction of its own: of an expression the compiler makes a shift more wherever the wrapped bits are masked off.
BS_DEVICE u32 rotate_left(u32 word, int by) {
#ifdef __CUDACC__
    u32 d;
    asm("shf.l.wrap.b32 %0, %1, %1, %2;" : "=r"(d) : "r"(word), "r"(by));
    return d;
#else
    return word << by | word >> (32 - by);
#endif
}

// a * b + c. Integer products have a pipe of their own, beside that of shifts and sums.
BS_DEVICE u32 mad_lo(u32 a, u32 b, u32 c) {
#ifdef __CUDACC__
    u32 d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    return a * b + c;
#endif
}

#if !defined(__CUDACC__) && !defined(BS_RECIPROCAL_OFF)  // units in the last place: results must not depend on them
#define BS_RECIPROCAL_OFF 0
#endif

// 1 / x within two units in the last place, for x from 2^-100 to 2^100.
BS_DEVICE float rcp_approx(float x) {
#ifdef __CUDACC__
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(x));
    return near;
#else
    return host::float_of(host::bits_of(1.0f / x) + BS_RECIPROCAL_OFF);
#endif
}

// The larger magnitude of either half, NaN the largest; what its sign bits are is left open.
BS_DEVICE u32 max_abs_bf16x2(u32 a, u32 b) {
#ifdef __CUDACC__
    u32 d;
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
#endif
    return d;
#else
    a &= 0x7fff7fffu, b &= 0x7fff7fffu;
    const u32 low = (a & 0xffffu) > (b & 0xffffu) ? a : b, high = a >> 16 > b >> 16 ? a : b;
    return (low & 0xffffu) | (high & 0xffff0000u);
#endif
}

BS_DEVICE u32 max_abs_f16x2(u32 a, u32 b) {
#ifdef __CUDACC__
    u32 d;
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
#endif
    return d;
#else
    return max_abs_bf16x2(a, b);  // both formats order like their bits
#endif
}

}  // namespace bs::ptx
