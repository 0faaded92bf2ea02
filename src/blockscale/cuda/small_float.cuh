// Small floats: decoding, and rounding to nearest with ties to the even code, for any widths.
#pragma once
#include "exact.cuh"

// What the largest codes are: numbers, one NaN, or infinity and NaNs.
enum Specials { NUMBERS, ONE_NAN, IEEE };

// CARRIES is false where rounding stays inside a binade; SHIFT is added to the usual bias.
template <int EXPONENT_BITS, int MANTISSA_BITS, Specials SPECIALS, bool CARRIES = true, int SHIFT = 0>
struct SmallFloat {
    static constexpr bool IS_FLOAT = true, HAS_NAN = SPECIALS != NUMBERS;
    static constexpr int MANTISSA = MANTISSA_BITS, BYTES = 1;
    static constexpr int BIAS = (1 << (EXPONENT_BITS - 1)) - 1 + SHIFT;
    static constexpr int MAGNITUDE_BITS = EXPONENT_BITS + MANTISSA;
    static constexpr u32 EVERY = (1u << MAGNITUDE_BITS) - 1;
    static constexpr u32 NAN_CODE = SPECIALS == IEEE ? EVERY ^ ((1u << (MANTISSA - 1)) - 1) : EVERY;
    static constexpr u32 MAX_CODE =
        EVERY - (SPECIALS == NUMBERS ? 0 : SPECIALS == ONE_NAN ? 1 : 1u << MANTISSA);
    static constexpr int MAX_EXPONENT = int(MAX_CODE >> MANTISSA) - BIAS;
    static constexpr float MAX =
        float(MAX_CODE % (1u << MANTISSA) + (1u << MANTISSA)) * power_of_two(MAX_EXPONENT - MANTISSA);
    static constexpr float SMALLEST = power_of_two(1 - BIAS - MANTISSA);
    static constexpr u32 FIRST_NORMAL = u32(128 - BIAS) << 23;  // bits of a float32
    static constexpr int LOST = 23 - MANTISSA;                  // bits that rounding takes away

    // What a code without sign decodes to. As float32, its fields are right but for the bias. Codes
    // that an unsigned float leaves unused are NaN.
    static EXACT float decode(u32 code) {
        const float value = product(float_of(code << LOST), power_of_two(127 - BIAS));
        if constexpr (SPECIALS == ONE_NAN) return code >= EVERY ? float_of(NAN_BITS) : value;
        if constexpr (SPECIALS == IEEE)
            return code > MAX_CODE ? float_of(code << LOST | INFINITE_BITS) : value;
        return value;
    }

    // Numbers up to here round to the largest at most; larger ones must be made smaller.
    static constexpr float KEPT = MAX + 0.49f * power_of_two(MAX_EXPONENT - MANTISSA);
    static EXACT float saturated(float x) { return smaller(x, MAX); }

    // The nearest of the values to a number up to KEPT: a sum with a large enough power of two leaves
    // no bits below the last one.
    static EXACT float nearest(float x) {
        if constexpr (MANTISSA == 0) {
            return decode(code_of_power(x));
        } else {
            const float anchor = float_of(larger(bits_of(x) & INFINITE_BITS, FIRST_NORMAL));
            return fused(anchor, -power_of_two(LOST), fused(anchor, power_of_two(LOST), x));
        }
    }

    // Its code, at bit LOST and above: again the fields are right but for the bias.
    static EXACT u32 shifted_code(float x) {
        if constexpr (MANTISSA == 0)
            return code_of_power(x) << LOST;
        else
            return bits_of(product(nearest(x), power_of_two(BIAS - 127)));
    }

    // The code of any number.
    static EXACT u32 code(float x) {
        const float kept = saturated(x);
        const u32 rounded = shifted_code(kept) >> LOST;
        if constexpr (CARRIES) return rounded;
        const u32 bits = bits_of(kept);
        const u32 field = bits < FIRST_NORMAL ? 0 : ((bits - FIRST_NORMAL) >> 23) + 1;
        return smaller(rounded, ((field + 1) << MANTISSA) - 1);
    }

 private:
    // Without mantissa, the parity of a code is that of the exponent, which a sum does not know.
    static EXACT u32 code_of_power(float x) {
        const u32 bits = bits_of(x), code = ((bits - FIRST_NORMAL) >> 23) + 1;
        if (bits < FIRST_NORMAL) return x > SMALLEST / 2;
        return code + ((bits & 0x7fffffu) + (code & 1u) > 0x400000u);
    }
};

// Powers of two, all codes but the last.
struct E8M0 {
    static constexpr bool HAS_NAN = true;
    static constexpr int MANTISSA = 0, BYTES = 1, BIAS = 127;
    static constexpr u32 NAN_CODE = 255, MAX_CODE = 254;

    static EXACT float decode(u32 code) {
        const u32 special = code == 0 ? 0x00400000u : NAN_BITS;  // 2^-127 is subnormal
        return float_of(code - 1 < MAX_CODE ? code << 23 : special);
    }
};

struct Float32 {
    static constexpr bool HAS_NAN = true;
    static constexpr int MANTISSA = 23, BYTES = 4;
    static constexpr u32 NAN_CODE = NAN_BITS;
};

using E4M4 = SmallFloat<4, 4, NUMBERS, false, 4>;
using UE4M3 = SmallFloat<4, 3, ONE_NAN>;
