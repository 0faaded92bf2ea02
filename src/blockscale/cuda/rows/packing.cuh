// Codes in the two ways of packing them row after row. VALUES codes are whole bytes of a bit stream, or
// whole groups of 32 as bit planes, and are held in registers as they lie in memory.
#pragma once
#include "generated/enums.cuh"
#include "ptx/scalar.cuh"

namespace bs::rows {

// Of a bit stream that starts with words[0].
template <int BITS>
BS_DEVICE u32 stream_code(const u32* words, int index) {
    const int word = index * BITS / 32, shift = index * BITS % 32;
    u32 code = words[word] >> shift;
    if (shift + BITS > 32) code |= words[word + 1] << (32 - shift);
    return code & ((1u << BITS) - 1);
}

// Codes come from an Encoder at bit PLACE and above, with BASE on top. They are summed into digits of words,
// and so are their bases, which the words start without.
template <int BITS, Packing PACKING, int VALUES, class Encoder>
class Packed {
 public:
    static constexpr int BYTES = VALUES * BITS / 8;

    // Whether the signs of eight numbers can be put at a time, and their codes without.
    static constexpr bool TAKES_SIGNS = PACKING == BIT_STREAM && BITS == 4;

    BS_DEVICE Packed() {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) words_[i] = START;
    }

    // Two codes. Indices are known when this is compiled: loops over them are unrolled.
    BS_DEVICE void put_pair(int index, u32 even, u32 odd) {
        constexpr bool HAS_ROOM = Encoder::PLACE > 0 && Encoder::PLACE + 2 * BITS <= 32;
        if constexpr (IN_DIGITS && PACKING == BIT_STREAM && HAS_ROOM) {  // moved together
            const u32 pair = ptx::mad_lo(odd, 1u << BITS, even) >> Encoder::PLACE;
            u32& word = words_[index * BITS / 32];
            word = ptx::mad_lo(pair, 1u << index * BITS % 32, word);
        } else {
            put(index, even);
            put(index + 1, odd);
        }
    }

    // In the top bits of eight codes.
    BS_DEVICE void put_signs(int index, u32 signs) { words_[index * BITS / 32] += signs; }

    // Once all codes are there: the words as they lie in memory.
    BS_DEVICE void finish() {
        if constexpr (PACKING == BIT_PLANES) {
#pragma unroll
            for (int group = 0; group < VALUES / 32; ++group) transpose<DIGIT / 2>(words_ + group * DIGIT);
#pragma unroll
            for (int i = 0; i < BYTES / 4; ++i) words_[i] = words_[i / BITS * DIGIT + i % BITS];
        }
    }

    // After that: `count` codes become zero.
    BS_DEVICE void clear(int first, int count) {
#pragma unroll
        for (int word = 0; word < (BYTES + 3) / 4; ++word) {
            const int begin = PACKING == BIT_PLANES ? word / BITS * 32 : word * 32;  // in codes, or in bits
            const int unit = PACKING == BIT_PLANES ? 1 : BITS;
            words_[word] &= ~(below(first * unit + count * unit - begin) & ~below(first * unit - begin));
        }
    }

    BS_DEVICE u32* words() { return words_; }

 private:
    // Bits of a digit. In planes, digit p of word c has code p * DIGIT + c, and planes are what bits become
    // when words and bits of digits change places.
    static constexpr int DIGIT = PACKING == BIT_STREAM ? BITS : BITS <= 2 ? BITS : BITS <= 4 ? 4 : 8;
    static constexpr bool IN_DIGITS = 16 % DIGIT == 0 && (Encoder::PLACE == 0 || Encoder::BASE == 0);
    static constexpr u32 START = IN_DIGITS ? 0u - Encoder::BASE * (~0u / ((1u << DIGIT) - 1)) : 0u;
    static constexpr int WORDS = PACKING == BIT_PLANES ? VALUES / 32 * DIGIT : (BYTES + 3) / 4;

    BS_DEVICE void put(int index, u32 code) {
        const int in_planes = (index / 32 * DIGIT + index % DIGIT) * 32 + index % 32 / DIGIT * DIGIT;
        const int bit = PACKING == BIT_STREAM ? index * BITS : in_planes;
        u32& word = words_[bit / 32];
        if constexpr (IN_DIGITS) {
            code >>= Encoder::PLACE;
            word = bit % 32 == 0 ? code + word : ptx::mad_lo(code, 1u << bit % 32, word);
        } else {
            code = (code - Encoder::BASE) >> Encoder::PLACE;
            word |= code << bit % 32;
            if (bit % 32 + BITS > 32) (&word)[1] |= code >> (32 - bit % 32);
        }
    }

    // Bits that stand STEP apart, in words that do so too, change places.
    template <int STEP>
    static BS_DEVICE void transpose(u32* words) {
        if constexpr (STEP > 0) {
            constexpr u32 KEPT = ~0u / ((1u << STEP) + 1);  // STEP bits, and as many zeros, and so on
#pragma unroll
            for (int i = 0; i < DIGIT; ++i) {
                if (i & STEP) continue;
                const u32 low = words[i], high = words[i + STEP];
                words[i] = (low & KEPT) | (high & KEPT) << STEP;
                words[i + STEP] = (low >> STEP & KEPT) | (high & ~KEPT);
            }
            transpose<STEP / 2>(words);
        }
    }

    static BS_DEVICE u32 below(int bit) { return bit <= 0 ? 0u : bit >= 32 ? ~0u : (1u << bit) - 1; }

    u32 words_[WORDS];
};

}  // namespace bs::rows
