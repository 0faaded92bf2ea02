// The scale of a block, from its amax alone: blockscale/numerics/scales.py.
//
// Usual numbers are those far from the ends of float32's range, whose quotients need no care.
#pragma once
#include "numbers/format.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

constexpr float LEAST_USUAL = power_of_two(-60), MOST_USUAL = power_of_two(60);

struct BlockScale {
    float value;
    u32 code;  // of scales of one byte
};

// CARRY_FROM: the mantissa of amax from which its block takes the next power of two.
template <class Format, u32 CARRY_FROM>
class ScaleRule {
 public:
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;

    BS_DEVICE explicit ScaleRule(float tensor_scale)
        : tensor_scale_(tensor_scale), inverse_(refined(ptx::rcp_approx(tensor_scale), tensor_scale)) {}

    BS_DEVICE float tensor_scale() const { return tensor_scale_; }

    BS_DEVICE bool is_usual() const {
        return Format::POWER_OF_TWO || ((tensor_scale_ >= LEAST_USUAL) & (tensor_scale_ <= MOST_USUAL) &
                                        is_quick_divisor(tensor_scale_));
    }

    static BS_DEVICE BlockScale of_code(u32 code) { return {Scale::decode_number(code), code}; }

    // USUAL: the rule and amax are.
    template <bool USUAL>
    BS_DEVICE BlockScale of_amax(float amax) const {
        if constexpr (Format::POWER_OF_TWO)
            return of_code(power_of<USUAL>(amax));
        else if constexpr (USUAL)
            return of_largest<USUAL>(quick_quotient(amax, Element::MAX, 1.0f / Element::MAX), amax);
        else
            return of_largest<USUAL>(quotient(amax, Element::MAX), amax);
    }

    // The scale that maps amax to 4 instead of 6, E2M1's largest: 1.5 amax / 6.
    template <bool USUAL>
    BS_DEVICE BlockScale of_amax_at_four(float amax) const {
        return of_largest<USUAL>(product(amax, 0.25f), amax);
    }

 private:
    // wanted: fp32(amax / largest element), which the tensor scale is a part of.
    template <bool USUAL>
    BS_DEVICE BlockScale of_largest(float wanted, float amax) const {
        wanted = USUAL ? quick_quotient(wanted, tensor_scale_, inverse_) : quotient(wanted, tensor_scale_);
        if constexpr (Format::WIDE_SCALE) {
            return {wanted, 0};
        } else {
            // Zero is among a float's codes, so the smallest scale is never worse than zero.
            if constexpr (Element::IS_FLOAT && USUAL) wanted = larger(wanted, Scale::SMALLEST);
            else if (Element::IS_FLOAT && amax > 0.0f && wanted < Scale::SMALLEST) wanted = Scale::SMALLEST;
            const u32 code = Scale::code(wanted);
            return {Scale::decode_number(code), code};
        }
    }

    template <bool USUAL>
    static BS_DEVICE u32 power_of(float amax) {
        int exponent = -127;
        if (!USUAL && amax < power_of_two(-126)) {  // exact, and no longer subnormal
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

    const float tensor_scale_, inverse_;
};

}  // namespace bs::scale_search
