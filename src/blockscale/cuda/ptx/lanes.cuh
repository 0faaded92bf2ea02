// What lanes of a warp tell each other. On the host a warp has one lane.
#pragma once
#include "numbers/exact.cuh"

#ifdef __CUDACC__

EXACT int lane_number() { return threadIdx.x % 32; }
EXACT bool any_lane(bool value) { return __any_sync(0xffffffffu, value); }

// The same number in another lane, so far away.
template <class T>
EXACT T across(T value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}

#elif !defined(BS_HAS_LANES)

EXACT int lane_number() { return 0; }
EXACT bool any_lane(bool value) { return value; }

template <class T>
EXACT T across(T value, int) {
    return value;
}

#endif
