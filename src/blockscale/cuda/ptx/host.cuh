// CUDA for a host compiler: the vector types, indices and intrinsics that the headers use.
//
// A CTA has one thread here, unless whoever runs a kernel sets `sync_cta` and `exchange` and calls it from several
// threads (tests/native/cuda_host.cpp). A cluster is what the caller puts into `cluster`.
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
inline thread_local HostIndex threadIdx;
inline HostIndex blockIdx, blockDim, gridDim;

namespace bs::host {

[[noreturn]] inline void missing(const char* function) {
    std::fprintf(stderr, "%s: this PTX instruction has no host emulation\n", function);
    std::abort();
}

inline unsigned char* dynamic_shared = nullptr;  // of the CTA that runs
inline void (*sync_cta)() = nullptr;  // null: one thread

// Gives this lane's value to the warp and takes all of them; null: one lane.
inline void (*exchange)(uint64_t own, uint64_t (&lanes)[32]) = nullptr;

// The CTAs of a cluster: where the shared memory of each begins, and which of them runs.
struct Cluster {
    const void* shared[16];
    int rank;
    long loads;  // from DSMEM, so far
};
inline Cluster cluster;

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

inline void __syncthreads() {
    if (bs::host::sync_cta) bs::host::sync_cta();
}
inline void __syncwarp() {
    uint64_t lanes[32];
    if (bs::host::exchange) bs::host::exchange(0, lanes);
}
inline void __threadfence() {}

// In a warp of one lane, that lane answers for all.
template <class T>
T __shfl_sync(unsigned, T value, int from) {
    if (!bs::host::exchange) return value;
    uint64_t own = 0, lanes[32];
    std::memcpy(&own, &value, sizeof value);
    bs::host::exchange(own, lanes);
    std::memcpy(&value, &lanes[from], sizeof value);
    return value;
}
template <class T>
T __shfl_xor_sync(unsigned all, T value, int distance) {
    return __shfl_sync(all, value, int(threadIdx.x % 32) ^ distance);
}
template <class T>
T __shfl_up_sync(unsigned all, T value, int distance) {
    const int lane = int(threadIdx.x % 32);
    return __shfl_sync(all, value, lane < distance ? lane : lane - distance);
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    if (!bs::host::exchange) return value;
    uint64_t lanes[32];
    bs::host::exchange(value, lanes);
    for (const uint64_t lane : lanes) value = lane > value ? unsigned(lane) : value;
    return value;
}
inline bool __any_sync(unsigned all, bool value) { return __reduce_max_sync(all, value) != 0; }

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
    const unsigned before = *at;
    *at = before > value ? before : value;
    return before;
}
inline unsigned atomicAdd(unsigned* at, unsigned value) { return (*at += value) - value; }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline float __uint_as_float(unsigned bits) { return bs::host::float_of(bits); }
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
