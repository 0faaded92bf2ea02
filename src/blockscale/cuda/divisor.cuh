// Dividing the numbers of a block by fp32(scale * tensor_scale), as the definition does, and in most
// blocks without a division.
//
// With r + rest = 1 / d to within 2^-47 of itself, x * r + x * rest is x / d to within 1.5 * 2^-47, and
// rounded once. A float element asks only on which side of a boundary b the rounded quotient lies. That
// could come out differently where x / d is as near to a midpoint of b and a neighbouring float32: to
// some (B 2^j + 1) or (B 2^j - 1), where j = 23 - the element's mantissa bits. In integers,
// |X 2^s - D (B 2^j +- 1)| <= 12 with s >= 23: so D, the mantissa of d, is within 12 of a multiple of
// 2^j. It cannot be that multiple itself, as an odd number above 2^24 does not divide X. So such d, and
// numbers near the ends of float32's range, are divided properly.
//
// A codebook's boundaries are any numbers: there the quotient is rounded correctly, by the usual two
// corrections with a remainder.
#pragma once
#include "format.cuh"

template <class Format>
class Divisor {
 public:
    using Element = typename Format::Element;

    // A power of two divides by its reciprocal, with the same rounding whatever the number.
    EXACT Divisor(float scale, float tensor_scale) : divisor_(product(scale, tensor_scale)) {
        if constexpr (Format::POWER_OF_TWO) {
            const u32 field = 254u - (bits_of(divisor_) >> 23);  // of 2^-127 too, which has field 0
            inverse_ = float_of(larger(field << 23, 0x00400000u));
        } else {
            quick_ = divisor_ >= power_of_two(-60) && divisor_ <= power_of_two(60) && !is_near_multiple();
            inverse_ = quick_ ? reciprocal(divisor_) : 0.0f;
            rest_ = product(fused(-divisor_, inverse_, 1.0f), inverse_);
        }
    }

    EXACT float value() const { return divisor_; }

    // Whether `quick` divides numbers up to amax. A quotient of a codebook format that would be
    // subnormal must come out on the right side of zero, which it does for divisors up to one.
    template <int COUNT>
    EXACT bool is_quick(const float (&x)[COUNT], float amax) const {
        if (Format::POWER_OF_TWO) return true;
        if (!quick_ || !(amax <= power_of_two(60))) return false;
        return Element::IS_FLOAT || divisor_ <= 1.0f ||
               (divisor_ <= power_of_two(20) && smallest(x) >= power_of_two(-100));
    }

    // Whether no quotient needs to be made smaller for its element.
    EXACT bool fits(float amax) const {
        if constexpr (!Element::IS_FLOAT) return true;
        else if constexpr (Format::POWER_OF_TWO) return false;  // in many blocks one does
        else return product(amax, inverse_) < Element::KEPT;
    }

    EXACT float quick(float x) const {
        if constexpr (Format::POWER_OF_TWO) return product(x, inverse_);
        if constexpr (Element::IS_FLOAT) return fused(x, inverse_, product(x, rest_));
        const float near = product(x, inverse_);
        const float nearer = fused(fused(-divisor_, near, x), inverse_, near);
        return fused(fused(-divisor_, nearer, x), inverse_, nearer);
    }

    EXACT float careful(float x) const {
        if constexpr (Format::POWER_OF_TWO) return quick(x);
        if ((bits_of(x) & 0x7fffffffu) == INFINITE_BITS) return x;  // saturates under every divisor
        return divisor_ > 0.0f ? quotient(x, divisor_) : product(0.0f, x);
    }

 private:
    EXACT bool is_near_multiple() const {
        if constexpr (Element::IS_FLOAT) {
            constexpr int ABOVE = 9 + Element::MANTISSA;
            const int off = int(bits_of(divisor_) << ABOVE) >> ABOVE;
            return off != 0 && off >= -16 && off <= 16;
        }
        return false;
    }

    template <int COUNT>
    static EXACT float smallest(const float (&x)[COUNT]) {
        u32 least = INFINITE_BITS - 1;  // zeros count as the largest
#pragma unroll
        for (int i = 0; i < COUNT; ++i) least = smaller(least, (bits_of(x[i]) & 0x7fffffffu) - 1);
        return float_of(least + 1);
    }

    float divisor_, inverse_, rest_ = 0.0f;
    bool quick_ = true;
};
