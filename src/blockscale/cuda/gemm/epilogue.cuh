// What happens to a sum before it is stored: tensor scales, bias, activation, one cast.
#pragma once
#include "generated/enums.cuh"
#include "ptx/half_pair.cuh"
#include "ptx/scalar.cuh"

namespace bs::gemm {

using numbers::BFLOAT16, numbers::FLOAT16, numbers::FLOAT32;

BS_DEVICE float load_number(const void* base, long long at, int dtype) {
    if (dtype == FLOAT32) return static_cast<const float*>(base)[at];
    u32 bits = static_cast<const u16*>(base)[at];
    return dtype == BFLOAT16 ? __uint_as_float(bits << 16) : ptx::float16_low(bits);
}

BS_DEVICE void store_number(void* base, long long at, float value, int dtype) {
    if (dtype == FLOAT32)
        static_cast<float*>(base)[at] = value;
    else
        static_cast<u16*>(base)[at] = static_cast<u16>(dtype == BFLOAT16
                                                           ? ptx::BFloat16x2::from_floats(value, 0.0f)
                                                           : ptx::Float16x2::from_floats(value, 0.0f));
}

// Four neighbours by one store, whose place must be a multiple of its size.
BS_DEVICE void store_four(void* base, long long at, const float (&value)[4], int dtype) {
    if (dtype == FLOAT32) {
        static_cast<float4*>(base)[at / 4] = make_float4(value[0], value[1], value[2], value[3]);
        return;
    }
    u32 pairs[2];  // rounded both ways, which takes no branch
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 brain = ptx::BFloat16x2::from_floats(value[2 * i], value[2 * i + 1]);
        const u32 half = ptx::Float16x2::from_floats(value[2 * i], value[2 * i + 1]);
        pairs[i] = dtype == BFLOAT16 ? brain : half;
    }
    static_cast<uint2*>(base)[at / 4] = make_uint2(pairs[0], pairs[1]);
}

// A division would branch for divisors of extreme size, which an exponent below zero does not give: this one is from 1
// to 2. One step of Newton after the approximation gives the quotient's last bit, or its neighbour.
BS_DEVICE float sigmoid(float x) {
    const float e = expf(-fabsf(x)), divisor = 1.0f + e, near = ptx::rcp_approx(divisor);
    return (x < 0.0f ? e : 1.0f) * __fmaf_rn(near, __fmaf_rn(-divisor, near, 1.0f), near);
}

// act(gate) * up; alpha and limit are swiglu_oai's. fminf and fmaxf drop a NaN, torch's clamp keeps it.
BS_DEVICE float activate(int activation, float gate, float up, float alpha, float limit) {
    switch (activation) {
        case SILU: return gate * sigmoid(gate) * up;
        case GELU: return gate * (0.5f * erfcf(gate * -0.70710678118654752f)) * up;
        case GELU_TANH:
            return gate * sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate)) * up;
        default: {
            float g = gate > limit ? limit : gate;
            float u = up > limit ? limit : up < -limit ? -limit : up;
            return g * sigmoid(alpha * g) * (u + 1.0f);
        }
    }
}

}  // namespace bs::gemm
