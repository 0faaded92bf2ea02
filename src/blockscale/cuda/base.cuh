// What every header stands on: integer types, how device functions are declared, and inline PTX.
//
// Headers compile for the host as well, where ptx/host.cuh supplies what CUDA declares by itself. BS_PTX names the host
// twin of an instruction first: a function of bs::host that does what the PTX manual says the instruction does. A host
// program links tests/emulator, which has them.
#pragma once

namespace bs {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

typedef u64 TensorMap[16];  // a CUtensorMap

// One of two types.
template <bool CONDITION, class A, class B>
struct Either {
    typedef A Type;
};
template <class A, class B>
struct Either<false, A, B> {
    typedef B Type;
};

template <class A, class B>
struct Same {
    static constexpr bool VALUE = false;
};
template <class A>
struct Same<A, A> {
    static constexpr bool VALUE = true;
};

}  // namespace bs

// NVRTC 13.0 knows neither offsetof nor gcc's builtin, but the intrinsic that its front end has for it.
#ifdef __CUDACC_RTC__
#define BS_OFFSET_OF(TYPE, MEMBER) (u64) __INTADDR__(&((TYPE*)0)->MEMBER)
#else
#define BS_OFFSET_OF(TYPE, MEMBER) __builtin_offsetof(TYPE, MEMBER)
#endif

#ifdef __CUDACC__
#define BS_DEVICE __device__ __forceinline__
#define BS_PTX(TWIN, ...) asm volatile(__VA_ARGS__)
#define BS_PTX_PURE(TWIN, ...) asm(__VA_ARGS__)  // may be moved, merged or dropped: its result depends on its inputs alone
#define BS_ON_HOST(TWIN)  // what the emulator alone is told
#else
#define BS_DEVICE inline
#define BS_PTX(TWIN, ...) ::bs::host::TWIN
#define BS_PTX_PURE(TWIN, ...) ::bs::host::TWIN
#define BS_ON_HOST(TWIN) ::bs::host::TWIN
#include "ptx/host.cuh"
#endif
