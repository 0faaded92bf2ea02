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
EXACT float reciprocal(float x) { return __frcp_rn(x); }
EXACT float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
EXACT double difference(double a, double b) { return __dadd_rn(a, -b); }
EXACT double sum(double a, double b) { return __dadd_rn(a, b); }
EXACT double product(double a, double b) { return __dmul_rn(a, b); }
EXACT float float_below(double x) { return __double2float_rd(x); }
EXACT float smaller(float a, float b) { return fminf(a, b); }

// The same number in another lane of the warp.
template <class T>
EXACT T across(T value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}
EXACT bool any_lane(bool value) { return __any_sync(0xffffffffu, value); }

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
EXACT float reciprocal(float x) { return 1.0f / x; }
EXACT float fused(float a, float b, float c) { return std::fma(a, b, c); }
EXACT double difference(double a, double b) { return a - b; }
EXACT double sum(double a, double b) { return a + b; }
EXACT double product(double a, double b) { return a * b; }
EXACT float float_below(double x) {
    const float near = float(x);
    return double(near) <= x ? near : std::nextafterf(near, -INFINITY);
}
EXACT float smaller(float a, float b) { return std::fmin(a, b); }
template <class T>
EXACT T across(T value, int) {
    return value;  // a block has one lane here
}
EXACT bool any_lane(bool value) { return value; }

#endif

constexpr u32 INFINITE_BITS = 0x7f800000u, NAN_BITS = 0x7fc00000u;

EXACT float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
EXACT u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
EXACT u32 larger(u32 a, u32 b) { return a > b ? a : b; }

constexpr float power_of_two(int exponent) {
    float value = 1.0f;
    for (; exponent > 0; --exponent) value *= 2.0f;
    for (; exponent < 0; ++exponent) value *= 0.5f;
    return value;
}
