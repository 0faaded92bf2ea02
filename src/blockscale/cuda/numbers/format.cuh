// What a kernel is compiled for.
#pragma once
#include "numbers/codebook.cuh"

namespace bs::numbers {

template <int BITS_OF_CODE, class ELEMENT, class SCALE, int VALUES_OF_BLOCK>
struct Format {
    using Element = ELEMENT;
    using Scale = SCALE;
    static constexpr int BITS = BITS_OF_CODE, BLOCK = VALUES_OF_BLOCK;
    static constexpr bool POWER_OF_TWO = Same<SCALE, E8M0>::VALUE;
    static constexpr bool WIDE_SCALE = Same<SCALE, Float32>::VALUE;
    static constexpr bool HAS_NAN = SCALE::HAS_NAN;
};

}  // namespace bs::numbers
