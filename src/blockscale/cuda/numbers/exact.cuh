// Arithmetic whose every rounding is written out: operations that no compiler contracts or reorders,
// and float32 as bits. Headers that stand on this one compile for the host as well, where
// tests/native/test_cuda_conversions.py compares them with the definition, bit by bit.
#pragma once
#include "ptx/scalar.cuh"

namespace bs::numbers {

#ifdef __CUDACC__

BS_DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
BS_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
BS_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
BS_DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }
BS_DEVICE float sum(float a, float b) { return __fadd_rn(a, b); }
BS_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BS_DEVICE double difference(double a, double b) { return __dadd_rn(a, -b); }
BS_DEVICE double sum(double a, double b) { return __dadd_rn(a, b); }
BS_DEVICE double product(double a, double b) { return __dmul_rn(a, b); }
BS_DEVICE float float_below(double x) { return __double2float_rd(x); }
BS_DEVICE float smaller(float a, float b) { return fminf(a, b); }
BS_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
BS_DEVICE float magnitude(float x) { return fabsf(x); }
// Returns x. The compiler does not know that, so in each turn of a loop it computes again what depends on x, which
// would otherwise take registers across turns.
BS_DEVICE float forgotten(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

#else

BS_DEVICE u32 bits_of(float x) { return host::bits_of(x); }
BS_DEVICE float float_of(u32 bits) { return host::float_of(bits); }
BS_DEVICE float product(float a, float b) { return a * b; }
BS_DEVICE float quotient(float a, float b) { return a / b; }
BS_DEVICE float sum(float a, float b) { return a + b; }
BS_DEVICE float fused(float a, float b, float c) { return std::fma(a, b, c); }
BS_DEVICE double difference(double a, double b) { return a - b; }
BS_DEVICE double sum(double a, double b) { return a + b; }
BS_DEVICE double product(double a, double b) { return a * b; }
BS_DEVICE float float_below(double x) {
    const float near = float(x);
    return double(near) <= x ? near : std::nextafterf(near, -INFINITY);
}
BS_DEVICE float smaller(float a, float b) { return std::fmin(a, b); }
BS_DEVICE float larger(float a, float b) { return std::fmax(a, b); }
BS_DEVICE float magnitude(float x) { return std::fabs(x); }
BS_DEVICE float forgotten(float x) { return x; }

#endif

constexpr u32 INFINITE_BITS = 0x7f800000u, NAN_BITS = 0x7fc00000u;

// x / d rounded correctly, with r = ptx::rcp_approx(d): the usual correction of a reciprocal, and of a
// quotient by its remainder. For numbers and quotients from 2^-100 to 2^100 and d that is not among the
// 16 largest numbers below a power of two; test_quick_quotients_are_correctly_rounded looks at every d.
BS_DEVICE float refined(float r, float d) { return fused(fused(-d, r, 1.0f), r, r); }
BS_DEVICE float quick_quotient(float x, float d, float refined_reciprocal) {
    const float near = product(x, refined_reciprocal);
    return fused(fused(-d, near, x), refined_reciprocal, near);
}
BS_DEVICE bool is_quick_divisor(float d) { return (bits_of(d) & 0x7fffffu) < 0x7ffff0u; }

BS_DEVICE u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
BS_DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

constexpr float power_of_two(int exponent) {
    float value = 1.0f;
    for (; exponent > 0; --exponent) value *= 2.0f;
    for (; exponent < 0; ++exponent) value *= 0.5f;
    return value;
}

}  // namespace bs::numbers
