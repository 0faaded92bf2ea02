// Arithmetic whose every rounding is written out: operations that no compiler contracts or reorders,
// and float32 as bits. Headers that stand on this one compile for the host as well, where
// tests/native/test_cuda_conversions.py compares them with the definition, bit by bit.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__

#define EXACT __device__ __forceinline__

EXACT u32 bits_of(float x) { return __float_as_uint(x); }
EXACT float float_of(u32 bits) { return __uint_as_float(bits); }
EXACT float product(float a, float b) { return __fmul_rn(a, b); }
EXACT float quotient(float a, float b) { return __fdiv_rn(a, b); }
// Within two units in the last place, for x from 2^-100 to 2^100.
EXACT float near_reciprocal(float x) {
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(x));
    return near;
}
EXACT float sum(float a, float b) { return __fadd_rn(a, b); }
EXACT float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
EXACT double difference(double a, double b) { return __dadd_rn(a, -b); }
EXACT double sum(double a, double b) { return __dadd_rn(a, b); }
EXACT double product(double a, double b) { return __dmul_rn(a, b); }
EXACT float float_below(double x) { return __double2float_rd(x); }
EXACT float smaller(float a, float b) { return fminf(a, b); }
EXACT float larger(float a, float b) { return fmaxf(a, b); }
// Where shifts and sums of integers would wait for each other, products have units of their own.
EXACT u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
EXACT float magnitude(float x) { return fabsf(x); }
// Itself. A compiler does not know that, and makes anew in each turn of a loop what would else take registers.
EXACT float forgotten(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

// The larger magnitude of either half, NaN the largest; what its sign bits are is left open.
#if __CUDA_ARCH__ >= 860
EXACT u32 largest_bfloat16(u32 a, u32 b) {
    u32 d;
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
EXACT u32 largest_float16(u32 a, u32 b) {
    u32 d;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
#else
EXACT u32 largest_bfloat16(u32 a, u32 b) {
    u32 d;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
    return d;
}
EXACT u32 largest_float16(u32 a, u32 b) {
    u32 d;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a & 0x7fff7fffu), "r"(b & 0x7fff7fffu));
    return d;
}
#endif

// Four of the eight bytes of low and high, the lowest digit of `which` first: byte 0 to 7; with 8 added,
// its topmost bit in all eight places.
EXACT u32 bytes_of(u32 low, u32 high, u32 which) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(which));
    return d;
}

#else

#include <cmath>
#include <cstring>

#define EXACT inline

EXACT u32 bits_of(float x) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
EXACT float float_of(u32 bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
EXACT float product(float a, float b) { return a * b; }
EXACT float quotient(float a, float b) { return a / b; }
#ifndef BS_RECIPROCAL_OFF  // units in the last place, to show that results do not depend on them
#define BS_RECIPROCAL_OFF 0
#endif
EXACT float near_reciprocal(float x) { return float_of(bits_of(1.0f / x) + BS_RECIPROCAL_OFF); }
EXACT float sum(float a, float b) { return a + b; }
EXACT float fused(float a, float b, float c) { return std::fma(a, b, c); }
EXACT double difference(double a, double b) { return a - b; }
EXACT double sum(double a, double b) { return a + b; }
EXACT double product(double a, double b) { return a * b; }
EXACT float float_below(double x) {
    const float near = float(x);
    return double(near) <= x ? near : std::nextafterf(near, -INFINITY);
}
EXACT float smaller(float a, float b) { return std::fmin(a, b); }
EXACT float larger(float a, float b) { return std::fmax(a, b); }
EXACT u32 multiply_add(u32 a, u32 b, u32 c) { return a * b + c; }
EXACT float magnitude(float x) { return std::fabs(x); }
EXACT float forgotten(float x) { return x; }
EXACT u32 largest_halves(u32 a, u32 b) {
    a &= 0x7fff7fffu, b &= 0x7fff7fffu;
    const u32 low = (a & 0xffffu) > (b & 0xffffu) ? a : b, high = a >> 16 > b >> 16 ? a : b;
    return (low & 0xffffu) | (high & 0xffff0000u);
}
EXACT u32 largest_bfloat16(u32 a, u32 b) { return largest_halves(a, b); }
EXACT u32 largest_float16(u32 a, u32 b) { return largest_halves(a, b); }
EXACT u32 bytes_of(u32 low, u32 high, u32 which) {
    const u64 all = u64(high) << 32 | low;
    u32 bytes = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 digit = which >> 4 * i & 15, byte = u32(all >> 8 * (digit & 7)) & 0xffu;
        bytes |= (digit < 8 ? byte : byte >> 7 ? 0xffu : 0u) << 8 * i;
    }
    return bytes;
}

#endif

constexpr u32 INFINITE_BITS = 0x7f800000u, NAN_BITS = 0x7fc00000u;

// x / d rounded correctly, with r = near_reciprocal(d): the usual correction of a reciprocal, and of a
// quotient by its remainder. For numbers and quotients from 2^-100 to 2^100 and d that is not among the
// 16 largest numbers below a power of two; test_quick_quotients_are_correctly_rounded looks at every d.
EXACT float refined(float r, float d) { return fused(fused(-d, r, 1.0f), r, r); }
EXACT float quick_quotient(float x, float d, float refined_reciprocal) {
    const float near = product(x, refined_reciprocal);
    return fused(fused(-d, near, x), refined_reciprocal, near);
}
EXACT bool is_quick_divisor(float d) { return (bits_of(d) & 0x7fffffu) < 0x7ffff0u; }

EXACT u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
EXACT u32 larger(u32 a, u32 b) { return a > b ? a : b; }

constexpr float power_of_two(int exponent) {
    float value = 1.0f;
    for (; exponent > 0; --exponent) value *= 2.0f;
    for (; exponent < 0; ++exponent) value *= 0.5f;
    return value;
}
