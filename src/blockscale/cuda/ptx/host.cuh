// CUDA for a host compiler: the vector types, indices and intrinsics that the headers use.
//
// tests/emulator defines what is declared here and runs kernels by it. Outside of a launch there is one thread.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct HostIndex {
    unsigned x, y, z;
};
extern HostIndex threadIdx, blockIdx, blockDim, gridDim;

namespace bs::host {

void sync_threads();
void sync_warp(uint32_t mask);

// Gives this lane's value to the lanes of the mask and takes theirs.
void exchange(uint32_t mask, uint64_t own, uint64_t (&lanes)[32]);

uint32_t atomic_update(uint32_t* at, uint32_t (*change)(uint32_t, uint32_t), uint32_t value);

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// float32 to bfloat16 and float16, rounded to nearest even; NaN has one code.
inline uint32_t to_bfloat16(float value) {
    const uint32_t bits = bits_of(value);
    if (std::isnan(value)) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline uint32_t to_float16(float value) {
    const uint32_t sign = bits_of(value) >> 16 & 0x8000u, size = bits_of(value) & 0x7fffffffu;
    if (std::isnan(value)) return 0x7fffu;
    if (size >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 2^16 or more
    if (size < 0x38800000u) return sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f));
    return sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
}
inline float from_float16(uint32_t half) {
    const uint32_t shifted = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    const uint32_t special = shifted | 0x7f800000u, number = bits_of(float_of(shifted) * 0x1p112f);
    return float_of(sign | (shifted >= 0x0f800000u ? special : number));
}

}  // namespace bs::host

inline void __syncthreads() { bs::host::sync_threads(); }
inline void __syncwarp(unsigned mask = ~0u) { bs::host::sync_warp(mask); }
inline void __threadfence() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
    uint64_t own = 0, lanes[32];
    std::memcpy(&own, &value, sizeof value);
    bs::host::exchange(mask, own, lanes);
    std::memcpy(&value, &lanes[from & 31], sizeof value);
    return value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return __shfl_sync(mask, value, int(threadIdx.x % 32) ^ distance);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
    const int lane = int(threadIdx.x % 32);
    return __shfl_sync(mask, value, lane < distance ? lane : lane - distance);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    uint64_t lanes[32];
    bs::host::exchange(mask, value, lanes);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && lanes[i] > value) value = unsigned(lanes[i]);
    return value;
}
inline bool __any_sync(unsigned mask, bool value) { return __reduce_max_sync(mask, value) != 0; }

template <class T>
T __ldg(const T* from) {
    if (uintptr_t(from) % sizeof(T)) __builtin_trap();  // a GPU reads aligned words alone
    return *from;
}
template <class T>
T __ldcg(const T* from) {
    return __ldg(from);
}
inline unsigned atomicMax(unsigned* at, unsigned value) {
    return bs::host::atomic_update(
        at, [](unsigned a, unsigned b) { return a > b ? a : b; }, value);
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
    return bs::host::atomic_update(
        at, [](unsigned a, unsigned b) { return a + b; }, value);
}

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline float __uint_as_float(unsigned bits) { return bs::host::float_of(bits); }
inline unsigned __float_as_uint(float value) { return bs::host::bits_of(value); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
template <class T>
T min(T a, T b) {
    return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}

#include "ptx/host_twins.cuh"
