// Powers of two that a GEMM moves between weights, scales and sums, where it multiplies weights by their scales.
//
// E2M1: decoding shifts the bits of a code to the fields of a 16-bit float. Read as that float, the code is 2^-126
// (bfloat16) or 2^-14 (float16) of its value. No weight is multiplied to make up for it: scales are multiplied by
// SCALE_LIFT, as much as the largest scale leaves below overflow, and sums by SUM_LIFT, the rest.
//
// E8M0 scales go up to 2^127. With E2M1, SCALE_LIFT leaves room for scales up to LARGEST_LIFTED; a k tile with a larger
// one multiplies its weights by SCALE_LIFT instead (MAY_EXCEED). Other elements have every E8M0 scale divided by
// HEADROOM, at least the largest weight, so that weight times scale does not overflow, and sums multiplied by it.
#pragma once
#include "decode/format.cuh"

namespace bs::gemm {

template <class Pair, class Format, bool SCALES_WEIGHTS>
struct Lift {
    static constexpr decode::Element ELEMENT = Format::ELEMENT;
    static constexpr bool IS_POWER = Format::SCALE == decode::E8M0;
    static constexpr bool UNLIFTED = ELEMENT == decode::E2M1;  // weights stay where the shifts put them
    static constexpr bool MAY_EXCEED = UNLIFTED && IS_POWER;
    static constexpr float LARGEST_LIFTED = MAY_EXCEED ? 0x1p5f : 0x1p9f;  // UE4M3 ends at 448
    static constexpr float HEADROOM = ELEMENT == decode::E4M3 || ELEMENT == decode::TABLE ? 0x1p8f : 0x1p4f;
    static constexpr float SCALE_LIFT = UNLIFTED ? (Pair::is_bfloat16 ? 0x1p127f / LARGEST_LIFTED : 1.0f)
                                        : IS_POWER ? 1.0f / HEADROOM : 1.0f;
    static constexpr float SUM_LIFT = !SCALES_WEIGHTS ? 1.0f
                                      : UNLIFTED     ? (Pair::is_bfloat16 ? 0x1p126f / SCALE_LIFT : 0x1p14f)
                                                     : 1.0f / SCALE_LIFT;
};

}  // namespace bs::gemm
