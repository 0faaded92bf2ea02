// Codes in the order of fragments, bit by bit: for kernels that need not be as quick as decode/floats.cuh.
#pragma once
#include "generated/fragments.cuh"

namespace bs::decode {

// Code `value` of step `step` of a lane; a folded code is a sign above a distance from the middle.
template <int BITS, bool FOLDED>
BS_DEVICE u32 code_of(const u32 (&words)[BITS], int step, int value) {
    u32 code = 0;
#pragma unroll
    for (int bit = 0; bit < BITS; bit++) {
        const int at = bit_place<BITS, FOLDED>(step, value, bit);
        code |= (words[at / 32] >> at % 32 & 1u) << bit;
    }
    constexpr u32 HALF = 1u << (BITS - 1);
    if (FOLDED) code = code >= HALF ? 2 * HALF - 1 - code : code + HALF;
    return code;
}

}  // namespace bs::decode
