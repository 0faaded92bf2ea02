// Codes that stand row after row as a bit stream, as activations do, to pairs of 16-bit floats.
//
// decode/floats.cuh does the same for weights, whose bits a layout has put where few instructions find them. Here the two
// codes of a pair come to the halves of a register, and one integer product, which is no matter of the integer pipe,
// shifts signs and magnitudes to the fields of a 16-bit float.
#pragma once
#include "decode/scales.cuh"

namespace bs::decode {

// `pair(words, j)`: codes 2 j and 2 j + 1 of a stream that begins with words[0], as 2^-LIFT of their values.
template <class T, Element ELEMENT, int BITS>
struct RowDecoder {
    static_assert(BITS == 4 || BITS == 6, "a sign, and fields that fit those of a 16-bit float");
    static_assert(T::is_bfloat16, "float16 has no room for the values times their scales");
    static constexpr int BIAS = ELEMENT == E3M2 ? 3 : 1, MANTISSA = ELEMENT == E2M3 ? 3 : ELEMENT == E3M2 ? 2 : 1;
    static constexpr int LIFT = 127 - BIAS;
    static constexpr int AT = 7 - MANTISSA, SIGN_AT = 16 - BITS;  // where the lowest bit comes to stand, and that for signs
    static constexpr u32 SIGNS = 0x80008000u, MAGNITUDES = 0x00010001u * (((1u << (BITS - 1)) - 1) << AT);

    // Each in a half of its own.
    static BS_DEVICE u32 apart(const u32* words, int j) {
        if constexpr (BITS == 4) {
            const u32 even = words[j / 4] & 0x0F0F0F0Fu, odd = words[j / 4] >> 4 & 0x0F0F0F0Fu;
            return ptx::prmt(even, odd, 0x8480u + 0x1111u * (j % 4));  // 8 and more: the top bit of a byte, which is 0
        } else {
            const int word = 2 * BITS * j / 32, shift = 2 * BITS * j % 32;
            u32 both = words[word] >> shift;
            if (shift + 2 * BITS > 32) both |= words[word + 1] << (32 - shift);
            return (both & 0x3Fu) | (both << (16 - BITS) & 0x3F0000u);
        }
    }

    static BS_DEVICE u32 pair(const u32* words, int j) {
        const u32 codes = apart(words, j);
        if constexpr (AT + BITS <= SIGN_AT)  // the two copies of a code do not touch
            return codes * ((1u << SIGN_AT) + (1u << AT)) & (SIGNS | MAGNITUDES);
        else
            return (codes << SIGN_AT & SIGNS) | (codes << AT & MAGNITUDES);
    }
};

template <class T, Element ELEMENT>
struct RowDecoder<T, ELEMENT, 8> {
    static constexpr int LIFT = 0;

    static BS_DEVICE u32 pair(const u32* words, int j) {
        return EightBits<T, ELEMENT>::two(words[j / 2] >> 16 * (j % 2));
    }
};

}  // namespace bs::decode
