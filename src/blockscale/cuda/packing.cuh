// Codes in the two ways of packing them row after row. VALUES codes are whole bytes of a bit stream, or
// whole groups of 32 as bit planes, and are held in registers as they lie in memory.
#pragma once
#include "exact.cuh"

enum Packing { BIT_STREAM, BIT_PLANES };

// Of a bit stream that starts with words[0].
template <int BITS>
EXACT u32 stream_code(const u32* words, int index) {
    const int word = index * BITS / 32, shift = index * BITS % 32;
    u32 code = words[word] >> shift;
    if (shift + BITS > 32) code |= words[word + 1] << (32 - shift);
    return code & ((1u << BITS) - 1);
}

template <int BITS, Packing PACKING, int VALUES>
class Packed {
 public:
    static constexpr int BYTES = VALUES * BITS / 8;

    // Indices are known when this is compiled: loops over them are unrolled.
    EXACT void put(int index, u32 code) {
        if constexpr (PACKING == BIT_PLANES) {
#pragma unroll
            for (int bit = 0; bit < BITS; ++bit)
                words_[index / 32 * BITS + bit] |= (code >> bit & 1u) << index % 32;
        } else {
            const int word = index * BITS / 32, shift = index * BITS % 32;
            words_[word] |= code << shift;
            if (shift + BITS > 32) words_[word + 1] |= code >> (32 - shift);
        }
    }

    // Two codes, at bit SHIFT and above: moved together where a word has room for both.
    template <int SHIFT>
    EXACT void put_pair(int index, u32 even, u32 odd) {
        if constexpr (PACKING == BIT_STREAM && SHIFT + 2 * BITS <= 32 && 16 % BITS == 0) {
            const u32 pair = multiply_add(odd, 1u << BITS, even) >> SHIFT;
            u32& word = words_[index * BITS / 32];
            word = multiply_add(pair, 1u << index * BITS % 32, word);
        } else {
            put(index, even >> SHIFT);
            put(index + 1, odd >> SHIFT);
        }
    }

    // Of a bit plane; as answers come, before they are a code.
    EXACT void put_bit(int index, int bit, bool is_set) {
        if (is_set) words_[index / 32 * BITS + bit] |= 1u << index % 32;
    }

    EXACT u32* words() { return words_; }

 private:
    u32 words_[(BYTES + 3) / 4] = {};
};
