// What codes and scales decode to: two float32 products in a fixed order, as
// blockscale/numerics/dequantize.py defines it.
#pragma once
#include "numbers/format.cuh"

namespace bs::numbers {

template <class Format>
struct ScaleDecoder {
    // As stored: a code, or the bits of a float32.
    static BS_DEVICE float decode(u32 stored) {
        if constexpr (Format::WIDE_SCALE)
            return float_of(stored);
        else
            return Format::Scale::decode(stored);
    }
};

// Codes of floats with their sign; codebooks look up.
template <int BITS, class Element>
struct FloatDecoder {
    static BS_DEVICE float value(u32 code) {
        const u32 sign = code >> (BITS - 1);
        return float_of(bits_of(Element::decode(code & ((1u << (BITS - 1)) - 1))) | sign << 31);
    }
};

BS_DEVICE float scaled(float value, float scale, float tensor_scale) {
    return product(product(value, scale), tensor_scale);
}

}  // namespace bs::numbers
