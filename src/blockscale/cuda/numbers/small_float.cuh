// Small floats: decoding, and rounding to nearest with ties to the even code, for any widths.
#pragma once
#include "generated/enums.cuh"
#include "numbers/exact.cuh"

namespace bs::numbers {

// How far the quotients of a block go: beyond the largest value; not so far that they round beyond it; or
// not so far that they round beyond four.
enum Reach { BEYOND, UP_TO_LARGEST, UP_TO_FOUR };

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

    // Two exponent bits: values lie 2^-MANTISSA apart up to 2, twice as far up to 4, and again. A sum
    // with TO_TWO is a float32 whose last bit has the first two distances, and its bits count values;
    // with TO_FOUR, the last two. The smaller count is that of the values there are.
    static constexpr bool IN_STEPS = EXPONENT_BITS == 2 && MANTISSA > 0 && SPECIALS == NUMBERS && SHIFT == 0;
    static constexpr float TO_TWO = power_of_two(LOST + 1) - 2.0f, TO_FOUR = 2.0f * TO_TWO;
    static constexpr u32 BITS_OF_TO_TWO = (u32(128 + LOST) << 23) - (2u << MANTISSA);
    static constexpr u32 STEP_UP = (1u << MANTISSA) - (1u << 23);  // from the second count to the first
    static constexpr int PLACE = IN_STEPS ? 0 : LOST;
    static constexpr u32 BASE = IN_STEPS ? BITS_OF_TO_TWO : 0;

    // What a code up to MAX_CODE decodes to. As float32, its fields are right but for the bias.
    static BS_DEVICE float decode_number(u32 code) {
        return product(float_of(code << LOST), power_of_two(127 - BIAS));
    }

    // What a code without sign decodes to. Codes that an unsigned float leaves unused are NaN.
    static BS_DEVICE float decode(u32 code) {
        const float value = decode_number(code);
        if constexpr (SPECIALS == ONE_NAN) return code >= EVERY ? float_of(NAN_BITS) : value;
        if constexpr (SPECIALS == IEEE)
            return code > MAX_CODE ? float_of(code << LOST | INFINITE_BITS) : value;
        return value;
    }

    // Numbers up to here round to the largest at most; larger ones must be made smaller.
    static constexpr float KEPT = MAX + 0.49f * power_of_two(MAX_EXPONENT - MANTISSA);
    static BS_DEVICE float saturated(float x) { return smaller(x, MAX); }
    static constexpr float KEPT_TO_FOUR = 4.0f + 0.98f * power_of_two(-MANTISSA);  // of numbers in steps

    // The nearest of the values to a number up to KEPT: a sum with a large enough power of two leaves
    // no bits below the last one.
    static BS_DEVICE float nearest(float x) {
        if constexpr (MANTISSA == 0) {
            return decode(code_of_power(x));
        } else {
            const float anchor = float_of(larger(bits_of(x) & INFINITE_BITS, FIRST_NORMAL));
            return fused(anchor, -power_of_two(LOST), fused(anchor, power_of_two(LOST), x));
        }
    }

    // The nearest value to x / d, with r nearly 1 / d; where that is not clear, another one that is as near.
    // Of numbers in steps, the two sums agree from 2 to 4.
    template <Reach REACH>
    static BS_DEVICE float near_quotient(float x, float d, float r) {
        if constexpr (IN_STEPS) {
            const float to = REACH == UP_TO_FOUR || x < 3.0f * d ? TO_TWO : TO_FOUR;
            return sum(fused(REACH == BEYOND ? smaller(x, MAX * d) : x, r, to), -to);
        } else {
            return nearest(REACH == BEYOND ? saturated(product(x, r)) : product(x, r));
        }
    }

    // Its code, at bit PLACE and above, and BASE on top of that.
    static BS_DEVICE u32 placed_code(float x) {
        if constexpr (IN_STEPS)
            return placed_product(x, 1.0f);
        else if constexpr (MANTISSA == 0)
            return code_of_power(x) << PLACE;
        else  // again the fields are right but for the bias
            return bits_of(product(nearest(x), power_of_two(BIAS - 127)));
    }

    // That of a product up to KEPT, of numbers in steps: it is not rounded before.
    static BS_DEVICE u32 placed_product(float x, float y) {
        return smaller(bits_of(fused(x, y, TO_TWO)), bits_of(fused(x, y, TO_FOUR)) + STEP_UP);
    }

    // The code of any number.
    static BS_DEVICE u32 code(float x) {
        const float kept = saturated(x);
        const u32 rounded = (placed_code(kept) - BASE) >> PLACE;
        if constexpr (CARRIES) return rounded;
        const u32 bits = bits_of(kept);
        const u32 field = bits < FIRST_NORMAL ? 0 : ((bits - FIRST_NORMAL) >> 23) + 1;
        return smaller(rounded, ((field + 1) << MANTISSA) - 1);
    }

 private:
    // Without mantissa, the parity of a code is that of the exponent, which a sum does not know.
    static BS_DEVICE u32 code_of_power(float x) {
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

    static BS_DEVICE float decode(u32 code) {
        const u32 special = code == 0 ? 0x00400000u : NAN_BITS;  // 2^-127 is subnormal
        return float_of(code - 1 < MAX_CODE ? code << 23 : special);
    }
    static BS_DEVICE float decode_number(u32 code) { return float_of(larger(code << 23, 0x00400000u)); }
};

// Codes of floats, by magnitude; codebooks have a Table instead.
template <class Element>
struct FloatEncoder {
    static constexpr bool ordinary = true, in_intervals = true, HAS_INTERVALS = false;
    static constexpr int PLACE = Element::PLACE;
    static constexpr u32 BASE = Element::BASE;
    static BS_DEVICE u32 placed_code(float x) { return Element::placed_code(x); }
    static BS_DEVICE float nearest(float x) { return Element::nearest(x); }

    // x less the nearest value times d, with r nearly 1 / d; where that is not clear, of another value that
    // is as near.
    template <Reach REACH>
    static BS_DEVICE float off(float x, float d, float r) {
        return fused(-Element::template near_quotient<REACH>(x, d, r), d, x);
    }
};

struct Float32 {
    static constexpr bool HAS_NAN = true;
    static constexpr int MANTISSA = 23, BYTES = 4;
    static constexpr u32 NAN_CODE = NAN_BITS;
};

using E4M4 = SmallFloat<4, 4, NUMBERS, false, 4>;
using UE4M3 = SmallFloat<4, 3, ONE_NAN>;

}  // namespace bs::numbers
