// Two 16-bit floats in a register: bfloat16 or float16.
#pragma once
#include "base.cuh"

namespace bs::ptx {

struct BFloat16x2 {
    static const bool is_bfloat16 = true;

    static BS_DEVICE u32 from_floats(float low, float high) {
#ifdef __CUDACC__
        u32 d;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
        return d;
#else
        return host::to_bfloat16(low) | host::to_bfloat16(high) << 16;
#endif
    }

    static BS_DEVICE u32 times(u32 a, u32 b) {  // -0 as the addend keeps every product's sign
#ifdef __CUDACC__
        u32 d;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
        return d;
#else
        return from_floats(host::float_of(a << 16) * host::float_of(b << 16),
                           host::float_of(a & 0xffff0000u) * host::float_of(b & 0xffff0000u));
#endif
    }

    static BS_DEVICE u32 power_of_two(int exponent) { return 0x00010001u * ((exponent + 127) << 7); }
};

BS_DEVICE float float16_low(u32 pair) {
#ifdef __CUDACC__
    float d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(d) : "r"(pair));
    return d;
#else
    return host::from_float16(pair & 0xffffu);
#endif
}

BS_DEVICE float float16_high(u32 pair) {
#ifdef __CUDACC__
    float d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(d) : "r"(pair));
    return d;
#else
    return host::from_float16(pair >> 16);
#endif
}

struct Float16x2 {
    static const bool is_bfloat16 = false;

    static BS_DEVICE u32 from_floats(float low, float high) {
#ifdef __CUDACC__
        u32 d;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
        return d;
#else
        return host::to_float16(low) | host::to_float16(high) << 16;
#endif
    }

    static BS_DEVICE u32 times(u32 a, u32 b) {
#ifdef __CUDACC__
        u32 d;
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
        return d;
#else
        return from_floats(float16_low(a) * float16_low(b), float16_high(a) * float16_high(b));
#endif
    }

    static BS_DEVICE u32 power_of_two(int exponent) { return 0x00010001u * ((exponent + 15) << 10); }
};

// Two E4M3 in the low 16 bits, as two float16, which hold every value, infinity and NaN of them. From sm_89 on.
BS_DEVICE u32 e4m3x2_to_float16x2(u32 pair) {
    u32 d = 0;
    BS_PTX_PURE(e4m3x2_to_float16x2(d, pair),
                "{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(d) : "r"(pair));
    return d;
}

// Two E8M0 in the low 16 bits, as two bfloat16, which hold all of them: 2^-127 as a subnormal, and NaN. From sm_100a on.
BS_DEVICE u32 e8m0x2_to_bfloat16x2(u32 pair) {
    u32 d = 0;
    BS_PTX_PURE(e8m0x2_to_bfloat16x2(d, pair),
                "{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.bf16x2.ue8m0x2 %0, l;}" : "=r"(d) : "r"(pair));
    return d;
}

// 1.0 in each half where two float16 are equal, else 0.
BS_DEVICE u32 equal_float16x2(u32 a, u32 b) {
#ifdef __CUDACC__
    u32 d;
    asm("set.eq.f16x2.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return (float16_low(a) == float16_low(b) ? 0x3c00u : 0u) |
           (float16_high(a) == float16_high(b) ? 0x3c000000u : 0u);
#endif
}

}  // namespace bs::ptx
