// Dividing the numbers of a block by d = fp32(scale * tensor_scale), as the definition does, and in most
// blocks without a division.
//
// With r = 1 / d to within 2^-22 of itself and rest = (1 - d r) r, r + rest is 1 / d to within 1.5 * 2^-44,
// and x * r + x * rest is x / d to within 1.75 * 2^-44, and rounded once. A float element asks only on which
// side of a boundary b the rounded quotient lies. That could come out differently where x / d is as near to
// a midpoint of b and a neighbouring float32: to some (B 2^j + 1) or (B 2^j - 1), where j = 23 - the
// element's mantissa bits. In integers, |X 2^s - D (B 2^j +- 1)| <= 112 with s >= 23: so D, the mantissa of
// d, is within 112 of a multiple of 2^j. It cannot be that multiple itself, as an odd number above 2^24 does
// not divide X. So such d, and numbers near the ends of float32's range, are divided properly.
//
// Short numbers x need no quotient: x * r is on the same side of all boundaries unless x / d is within
// 1.3 * 2^-22 of one. With B of m + 2 bits, where the element has m of mantissa, and X of at most p bits,
// |X 2^s - D B| <= 1.3 * 2^(m + 4) with s >= 25 + m - p: so D B is as near to a multiple of 2^s, for one of
// the 2^(m + 1) B. Such d, one in some hundred, have quotients. Powers of two have exact products.
//
// A codebook's boundaries are any numbers: there the quotient is rounded correctly.
#pragma once
#include "scale_search/block_scale.cuh"

namespace bs::scale_search {

using namespace numbers;  // the arithmetic and the formats that a search is written in

template <class Format>
class Divisor {
 public:
    using Element = typename Format::Element;

    // A power of two divides by its reciprocal, with the same rounding whatever the number.
    BS_DEVICE Divisor(float scale, float tensor_scale) : divisor_(product(scale, tensor_scale)) {
        if constexpr (Format::POWER_OF_TWO) {
            const u32 field = 254u - (bits_of(divisor_) >> 23);  // of 2^-127 too, which has field 0
            inverse_ = float_of(larger(field << 23, 0x00400000u));
        } else {
            inverse_ = ptx::rcp_approx(divisor_);
            if constexpr (Element::IS_FLOAT)
                rest_ = product(fused(-divisor_, inverse_, 1.0f), inverse_);
            else
                inverse_ = refined(inverse_, divisor_);
        }
    }

    BS_DEVICE float value() const { return divisor_; }
    BS_DEVICE float inverse() const { return inverse_; }  // of a usual divisor, nearly

    BS_DEVICE bool is_usual() const {
        return Format::POWER_OF_TWO || ((divisor_ >= LEAST_USUAL) & (divisor_ <= MOST_USUAL));
    }

    // Whether products of usual numbers of so many bits with `inverse` are on the right side of boundaries.
    template <int PRECISION>
    BS_DEVICE bool has_products() const {
        if constexpr (!Element::IS_FLOAT) return false;
        else if constexpr (Format::POWER_OF_TWO) return true;
        else if constexpr (PRECISION > 11 || Element::MANTISSA > 1) return false;
        else {
            constexpr int ABOVE = 32 - (25 + Element::MANTISSA - PRECISION), FIRST = 2 << Element::MANTISSA;
            constexpr u32 MOST = 21u << (Element::MANTISSA + ABOVE);
            u32 nearest = ~0u;
#pragma unroll
            for (u32 bound = FIRST; bound < 2 * FIRST; ++bound)
                nearest = smaller(nearest, bits_of(divisor_) * (bound << ABOVE) + MOST);
            return nearest > 2 * MOST;
        }
    }

    // Whether `quick` divides usual numbers by this usual divisor. A quotient of a codebook format that
    // would be subnormal must come out on the right side of zero, which it does for divisors up to one.
    template <int COUNT>
    BS_DEVICE bool is_quick(const float (&x)[COUNT]) const {
        if constexpr (Format::POWER_OF_TWO) {
            return true;
        } else if constexpr (Element::IS_FLOAT) {
            constexpr int ABOVE = 9 + Element::MANTISSA;
            const u32 off = bits_of(divisor_) << ABOVE, most = 128u << ABOVE;
            return (off == 0) | (off + most > 2 * most);
        } else {
            return is_quick_divisor(divisor_) &&
                   (divisor_ <= 1.0f || (divisor_ <= power_of_two(20) && smallest(x) >= power_of_two(-100)));
        }
    }

    // Whether no quotient needs to be made smaller for its element; or is beyond another limit.
    BS_DEVICE bool fits(float amax, float limit = Element::KEPT) const { return product(amax, inverse_) < limit; }

    BS_DEVICE float quick(float x) const {
        if constexpr (Format::POWER_OF_TWO) return product(x, inverse_);
        if constexpr (Element::IS_FLOAT) return fused(x, inverse_, product(x, rest_));
        return quick_quotient(x, divisor_, inverse_);
    }

    BS_DEVICE float careful(float x) const {
        if constexpr (Format::POWER_OF_TWO) return quick(x);
        if ((bits_of(x) & 0x7fffffffu) == INFINITE_BITS) return x;  // saturates under every divisor
        return divisor_ > 0.0f ? quotient(x, divisor_) : product(0.0f, x);
    }

 private:
    template <int COUNT>
    static BS_DEVICE float smallest(const float (&x)[COUNT]) {
        u32 least = INFINITE_BITS - 1;  // zeros count as the largest
#pragma unroll
        for (int i = 0; i < COUNT; ++i) least = smaller(least, (bits_of(x[i]) & 0x7fffffffu) - 1);
        return float_of(least + 1);
    }

    float divisor_, inverse_, rest_ = 0.0f;
};

}  // namespace bs::scale_search
