// The scale of a block, from its amax alone: blockscale/numerics/scales.py.
#pragma once
#include "format.cuh"

struct BlockScale {
    float value;
    u32 code;  // of scales of one byte
};

// CARRY_FROM: the mantissa of amax from which its block takes the next power of two.
template <class Format, u32 CARRY_FROM>
struct ScaleRule {
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;

    static EXACT BlockScale of_code(u32 code) { return {Scale::decode(code), code}; }

    static EXACT BlockScale of_amax(float amax, float tensor_scale) {
        if constexpr (Format::POWER_OF_TWO)
            return of_code(power_of(amax));
        else
            return of_largest(quotient(amax, Element::MAX), amax, tensor_scale);
    }

    // The scale that maps amax to 4 instead of 6, E2M1's largest: 1.5 amax / 6.
    static EXACT BlockScale of_amax_at_four(float amax, float tensor_scale) {
        return of_largest(product(amax, 0.25f), amax, tensor_scale);
    }

 private:
    // wanted: fp32(amax / largest element), which the tensor scale is a part of.
    static EXACT BlockScale of_largest(float wanted, float amax, float tensor_scale) {
        wanted = quotient(wanted, tensor_scale);
        if constexpr (Format::WIDE_SCALE) {
            return {wanted, 0};
        } else {
            // Zero is among a float's codes, so the smallest scale is never worse than zero.
            if (Element::IS_FLOAT && amax > 0.0f && wanted < Scale::SMALLEST) wanted = Scale::SMALLEST;
            return of_code(Scale::code(wanted));
        }
    }

    static EXACT u32 power_of(float amax) {
        int exponent = -127;
        if (amax < power_of_two(-126)) {  // exact, and no longer subnormal
            amax = product(amax, power_of_two(64));
            exponent -= 64;
        }
        const u32 bits = bits_of(amax);
        const bool carries = (bits & 0x7fffffu) >= CARRY_FROM;
        exponent += int(bits >> 23) + carries - Element::MAX_EXPONENT;
        // With a larger exponent the largest code would decode to infinity.
        const int highest = 127 - Element::MAX_EXPONENT;
        const int code = (exponent < highest ? exponent : highest) + Scale::BIAS;
        return code > 0 ? code : 0;
    }
};
