// Powers of two that a GEMM moves between weights, scales and sums, where it multiplies weights by their scales.
//
// E2M1: decoding shifts the bits of a code to the fields of a 16-bit float. Read as that float, the code is 2^-126
// (bfloat16) or 2^-14 (float16) of its value. No weight is multiplied to make up for it: scales are multiplied by
// SCALE_LIFT, as much as the largest scale leaves below overflow, and sums by SUM_LIFT, the rest.
//
// E8M0 scales go up to 2^127. With E2M1, SCALE_LIFT leaves room for scales up to LARGEST_LIFTED; a k tile with a larger
// one multiplies its weights by SCALE_LIFT instead (MAY_EXCEED), in code of its own (by_lift). Other elements have every
// E8M0 scale divided by HEADROOM, at least the largest weight, so that weight times scale does not overflow, and sums
// multiplied by it.
#pragma once
#include "decode/format.cuh"

namespace bs::gemm {

template <class Pair, class Format, bool SCALES_WEIGHTS>
struct Lift {
    static constexpr decode::Element ELEMENT = Format::ELEMENT;
    static constexpr bool IS_POWER = Format::SCALE == decode::E8M0;
    static constexpr bool UNLIFTED = ELEMENT == decode::E2M1;  // weights stay where the shifts put them
    static constexpr bool MAY_EXCEED = UNLIFTED && IS_POWER;
    static constexpr int ROOM = MAY_EXCEED ? 5 : 9;  // UE4M3 ends at 448
    static constexpr float LARGEST_LIFTED = 1 << ROOM;
    static constexpr float HEADROOM = ELEMENT == decode::E4M3 || ELEMENT == decode::TABLE ? 0x1p8f : 0x1p4f;
    static constexpr float SCALE_LIFT = UNLIFTED ? (Pair::is_bfloat16 ? 0x1p127f / LARGEST_LIFTED : 1.0f)
                                        : IS_POWER ? 1.0f / HEADROOM : 1.0f;
    static constexpr float SUM_LIFT = !SCALES_WEIGHTS ? 1.0f
                                      : UNLIFTED     ? (Pair::is_bfloat16 ? 0x1p126f / SCALE_LIFT : 0x1p14f)
                                                     : 1.0f / SCALE_LIFT;

    // Not 0 where an E8M0 code, of four or of many joined by OR, is of a scale above LARGEST_LIFTED, or of NaN. Scales
    // above 1 count as well, since one bit tells them, and are as rare.
    static BS_DEVICE u32 exceeding(u32 codes) { return codes & 0x80808080u; }

    // Four scales, each in both halves of a register.
    template <bool LIFTED>
    static BS_DEVICE void scales(u32 (&pairs)[4], u32 codes) {
        if constexpr (MAY_EXCEED && !LIFTED && Pair::is_bfloat16) {
            // None exceeds, so that a code is the exponent but for a constant.
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[i] = (decode::byte_of(codes, i) + (127 - ROOM)) * (0x00010001u << 7);
        } else {
            float s[4];
            decode::ScaleDecoder<Format::SCALE>::four(s, codes);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (!LIFTED) s[i] *= SCALE_LIFT;
                pairs[i] = Pair::from_floats(s[i], s[i]);
            }
        }
    }
};

template <bool IS_LIFTED>
struct Lifted {
    static constexpr bool VALUE = IS_LIFTED;
};

// By all lanes of a warp: `store(Lifted)` leaves the scales of some units in shared memory, and `units(Lifted)` multiplies
// these. `exceeding`: of the scales that a lane has looked at; warps of a warpgroup that multiplies by wgmma, one
// instruction of all four, must look at the same. Units are compiled twice. With a branch in each of them instead, the
// compiler decoded none beside another: MXFP4 in tiles of 64 to 128 rows took 4 to 17% longer on an H200.
template <class Lift, class Store, class Units>
BS_DEVICE void by_lift(u32 exceeding, const Store& store, const Units& units) {
    store(Lifted<false>());
    __syncwarp();
    const bool lift = Lift::MAY_EXCEED && __any_sync(~0u, exceeding);
    BS_ON_HOST(takes_branch(lift));
    if (lift) {
        store(Lifted<true>());
        __syncwarp();
        units(Lifted<true>());
    } else {
        units(Lifted<false>());
    }
}

}  // namespace bs::gemm
