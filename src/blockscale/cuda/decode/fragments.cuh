// Where the bits of a code stand in the words of a lane: layouts/fragments.py, in constants.
#pragma once
#include "ptx/ptx.cuh"

struct Place {
    int word, bit;
};

template <int BITS, bool FOLDED>
constexpr Place place_of(int step, int value, int bit) {
    const int pair = value / 2, half = value % 2;
    const int signs[4] = {15, 12, 14, 13}, lowest[4] = {6, 3, 0, 9};
    if (BITS == 2) return {step / 2, 16 * (step % 2) + 8 * (pair / 2) + 4 * half + 2 * (pair % 2) + bit};
    if (BITS == 3) return step < 3 ? Place{step, 4 * value + bit} : Place{bit, 4 * value + 3};
    if (FOLDED && BITS == 4 && step % 2 && bit == 3) return {step, 8 * (value % 4) + 7 - 4 * (value / 4)};
    if (FOLDED)
        return bit < 4 ? Place{step, 4 * value + bit} : Place{4, 16 * half + 4 * step + pair};
    if (BITS == 4) return {step, 16 * half + (bit == 3 ? signs[pair] : lowest[pair] + bit)};
    if (BITS == 6)
        return bit >= 2 ? Place{3 * (step / 2) + step % 2, 16 * half + 4 * (3 - pair) + bit - 2}
                        : Place{3 * (step / 2) + 2, 16 * half + 4 * pair + 2 * (step % 2) + bit};
    return {2 * step + pair % 2, 16 * (pair / 2) + 8 * half + bit};
}

// Code `VALUE` of step `STEP` of a lane; a folded code is a sign above a distance from the middle.
template <int BITS, bool FOLDED>
BS_DEVICE u32 code_of(const u32 (&words)[BITS], int step, int value) {
    u32 code = 0;
#pragma unroll
    for (int bit = 0; bit < BITS; bit++) {
        const Place at = place_of<BITS, FOLDED>(step, value, bit);
        code |= (words[at.word] >> at.bit & 1u) << bit;
    }
    constexpr u32 HALF = 1u << (BITS - 1);
    if (FOLDED) code = code >= HALF ? 2 * HALF - 1 - code : code + HALF;
    return code;
}
