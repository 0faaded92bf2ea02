// The tensor scale from the amax of a tensor: choose_tensor_scale in blockscale/numerics/scales.py.
#pragma once
#include "numbers/format.cuh"

namespace bs::numbers {

template <class Format, TensorScale KIND>
struct TensorScaleRule {
    using Element = typename Format::Element;
    using Scale = typename Format::Scale;

    static BS_DEVICE float of_amax(float amax) {
        if (amax == 0.0f) return 1.0f;
        return KIND == POWER ? power(amax) : from_largest(amax);
    }

 private:
    static constexpr float LARGEST = Element::MAX * Scale::MAX;

    // 1 / fp32(largest / amax), so that the reciprocal is a float32 too.
    static BS_DEVICE float from_largest(float amax) {
        const float finite = float_of(INFINITE_BITS - 1);
        return quotient(1.0f, smaller(quotient(LARGEST, amax), finite));
    }

    // One, unless the block scales would leave the range where they are precise.
    static BS_DEVICE float power(float amax) {
        constexpr float LEAST = 16.0f * power_of_two(1 - Scale::BIAS) * Element::MAX;
        if (amax >= LEAST && amax <= LARGEST) return 1.0f;
        int exponent = -127;
        if (amax < power_of_two(-126)) {
            amax = product(amax, power_of_two(64));
            exponent -= 64;
        }
        const u32 bits = bits_of(amax), top = bits_of(Element::MAX);
        exponent += int(bits >> 23) - Element::MAX_EXPONENT - ((bits & 0x7fffffu) < (top & 0x7fffffu));
        const int highest = 127 - Scale::MAX_EXPONENT - Element::MAX_EXPONENT;
        int shift = exponent - (Scale::MAX_EXPONENT - 1);
        shift = shift < -149 ? -149 : shift > highest ? highest : shift;
        return float_of(shift < -126 ? 1u << (shift + 149) : u32(shift + 127) << 23);
    }
};

}  // namespace bs::numbers
