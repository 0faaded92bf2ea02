// Codes that stand row after row as a bit stream, as activations do, to pairs of bfloat16.
//
// decode/floats.cuh does the same for weights, whose bits a layout has put where few instructions find them. Here the two
// codes of a pair come to the halves of a register, and one integer product, which is no matter of the integer pipe,
// shifts signs and magnitudes to the fields of a bfloat16. For formats whose values times their scales are exact in
// bfloat16: three instructions a value, where float32 and a rounding take seventeen.
#pragma once
#include "decode/floats.cuh"

namespace bs::decode {

// `pair(words, j)`: codes 2 j and 2 j + 1 of a stream that begins with words[0].
template <Element ELEMENT, int BITS>
struct RowDecoder {
    static_assert(BITS == 4 || BITS == 6, "a sign, and fields that fit those of a bfloat16");
    static constexpr int BIAS = ELEMENT == E3M2 ? 3 : 1, MANTISSA = ELEMENT == E2M3 ? 3 : ELEMENT == E3M2 ? 2 : 1;
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
        u32 fields;  // right but for the bias of the exponent
        if constexpr (AT + BITS <= SIGN_AT)  // the two copies of a code do not touch
            fields = codes * ((1u << SIGN_AT) + (1u << AT)) & (SIGNS | MAGNITUDES);
        else
            fields = (codes << SIGN_AT & SIGNS) | (codes << AT & MAGNITUDES);
        return ptx::BFloat16x2::times(fields, ptx::BFloat16x2::power_of_two(127 - BIAS));
    }
};

template <Element ELEMENT>
struct RowDecoder<ELEMENT, 8> {
    static BS_DEVICE u32 pair(const u32* words, int j) {
        return EightBits<ptx::BFloat16x2, ELEMENT>::two(words[j / 2] >> 16 * (j % 2));
    }
};

// Eight codes of a block times its scale, a float32 with the digits of a bfloat16.
template <Element ELEMENT, int BITS>
BS_DEVICE void decode_eight(u32 (&pairs)[4], const u32* words, float scale) {
    const u32 both = ptx::prmt(__float_as_uint(scale), 0, 0x3232);
    u32 is_nan = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        pairs[j] = ptx::BFloat16x2::times(RowDecoder<ELEMENT, BITS>::pair(words, j), both);
        is_nan |= (pairs[j] & 0x7FFF7FFFu) + 0x00010001u;  // NaN, and nothing else, is all ones
    }
    if (is_nan & 0x80008000u) {  // the code of NaN in what is written
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 nan = (pairs[j] & 0x7FFF7FFFu) + 0x00010001u & 0x80008000u;  // of either half
            pairs[j] = pairs[j] & ~(nan | (nan >> 15) * 0x3Fu);
        }
    }
}

}  // namespace bs::decode
