// What lanes of a warp tell each other.
#pragma once
#include "base.cuh"

namespace bs::ptx {

BS_DEVICE int lane_id() { return threadIdx.x % 32; }
BS_DEVICE bool any_lane(bool value) { return __any_sync(0xffffffffu, value); }

// The value of the lane whose number differs in the bits of `distance`.
template <class T>
BS_DEVICE T shfl_xor(T value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}

}  // namespace bs::ptx
