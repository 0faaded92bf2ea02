// What lanes of a warp tell each other, and how they take turns. On the host a warp has one lane.
#pragma once
#include "exact.cuh"

#ifdef __CUDACC__

constexpr int LANES_OF_WARP = 32;

EXACT int lane_number() { return threadIdx.x % LANES_OF_WARP; }
EXACT bool any_lane(bool value) { return __any_sync(0xffffffffu, value); }
EXACT u32 lanes_where(bool value) { return __ballot_sync(0xffffffffu, value); }  // a bit for each
EXACT void meet_warp() { __syncwarp(); }  // what was stored before can be read

// The same number in another lane: so far away, or of that number.
template <class T>
EXACT T across(T value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}
template <class T>
EXACT T of_lane(T value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}

#elif !defined(BS_HAS_LANES)

constexpr int LANES_OF_WARP = 1;

EXACT int lane_number() { return 0; }
EXACT bool any_lane(bool value) { return value; }
EXACT u32 lanes_where(bool value) { return value; }
EXACT void meet_warp() {}

template <class T>
EXACT T across(T value, int) {
    return value;
}
template <class T>
EXACT T of_lane(T value, int) {
    return value;
}

#endif

EXACT int first_of(u32 lanes) {
#ifdef __CUDACC__
    return __ffs(lanes) - 1;
#else
    return __builtin_ctz(lanes);
#endif
}
