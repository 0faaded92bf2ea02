// The three dtypes: numbers to and from the words that hold them.
#pragma once
#include "numbers/exact.cuh"

namespace bs::numbers {

// NaN is canonical in what is written.
BS_DEVICE bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > INFINITE_BITS; }

struct Wide {
    static constexpr int BYTES = 4, PRECISION = 24;

    static BS_DEVICE float get(const u32* words, int index) { return float_of(words[index]); }
    static BS_DEVICE u32 mask(int) { return ~0u; }  // of a number in its word

    // The larger magnitudes of two words, and the largest of a word as a float32: in the order of
    // integers, so that it is exact, NaN the largest of all.
    static BS_DEVICE u32 largest(u32 a, u32 b) { return larger(a & 0x7fffffffu, b & 0x7fffffffu); }
    static BS_DEVICE u32 float32_bits(u32 sizes) { return sizes & 0x7fffffffu; }

    // The signs of eight numbers: a byte of each, of all bits alike.
    static BS_DEVICE u32 even_signs(const u32* words) {
        return ptx::prmt(ptx::prmt(words[0], words[2], 0xfb), ptx::prmt(words[4], words[6], 0xfb), 0x5410);
    }
    static BS_DEVICE u32 odd_signs(const u32* words) { return even_signs(words + 1); }

    static BS_DEVICE void put_pair(u32* words, int index, float even, float odd) {
        words[index] = is_nan(even) ? NAN_BITS : bits_of(even);
        words[index + 1] = is_nan(odd) ? NAN_BITS : bits_of(odd);
    }
};

// Of four words; `which` asks for those of lower halves or of upper ones.
BS_DEVICE u32 signs_of_halves(const u32* words, u32 which) {
    return ptx::prmt(ptx::prmt(words[0], words[1], 0xfbd9), ptx::prmt(words[2], words[3], 0xfbd9), which);
}

struct BFloat16 {
    static constexpr int BYTES = 2, PRECISION = 8;

    static BS_DEVICE float get(const u32* words, int index) {
        return float_of(index % 2 ? words[index / 2] & 0xffff0000u : words[index / 2] << 16);
    }
    static BS_DEVICE u32 mask(int index) { return index % 2 ? 0xffff0000u : 0xffffu; }

    static BS_DEVICE u32 largest(u32 a, u32 b) { return ptx::max_abs_bf16x2(a, b); }
    static BS_DEVICE u32 float32_bits(u32 sizes) {
        return larger(sizes & 0x7fff0000u, sizes << 16 & 0x7fff0000u);
    }
    static BS_DEVICE u32 even_signs(const u32* words) { return signs_of_halves(words, 0x5410); }
    static BS_DEVICE u32 odd_signs(const u32* words) { return signs_of_halves(words, 0x7632); }

    static BS_DEVICE void put_pair(u32* words, int index, float even, float odd) {
        words[index / 2] = rounded(even) >> 16 | (rounded(odd) & 0xffff0000u);
    }

 private:
    static BS_DEVICE u32 rounded(float x) {  // in the upper half
        const u32 bits = bits_of(x);
        return is_nan(x) ? NAN_BITS : bits + 0x7fffu + (bits >> 16 & 1u);
    }
};

struct Float16 {
    static constexpr int BYTES = 2, PRECISION = 11;

    static BS_DEVICE float get(const u32* words, int index) {
        const u32 half = index % 2 ? words[index / 2] >> 16 : words[index / 2] & 0xffffu;
        const u32 shifted = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
        // Its fields are right but for the bias; the top exponent has its own.
        const float value = product(float_of(shifted), power_of_two(112));
        return float_of(sign | (shifted >= 0x0f800000u ? shifted | INFINITE_BITS : bits_of(value)));
    }
    static BS_DEVICE u32 mask(int index) { return index % 2 ? 0xffff0000u : 0xffffu; }

    static BS_DEVICE u32 largest(u32 a, u32 b) { return ptx::max_abs_f16x2(a, b); }
    static BS_DEVICE u32 float32_bits(u32 sizes) {
        const u32 one = larger(sizes >> 16 & 0x7fffu, sizes & 0x7fffu);
        return bits_of(get(&one, 0));
    }
    static BS_DEVICE u32 even_signs(const u32* words) { return signs_of_halves(words, 0x5410); }
    static BS_DEVICE u32 odd_signs(const u32* words) { return signs_of_halves(words, 0x7632); }

    static BS_DEVICE void put_pair(u32* words, int index, float even, float odd) {
        words[index / 2] = rounded(even) | rounded(odd) << 16;
    }

 private:
    static BS_DEVICE u32 rounded(float x) {
        const u32 bits = bits_of(x), sign = bits >> 16 & 0x8000u;
        const u32 size = smaller(bits & 0x7fffffffu, bits_of(65536.0f));  // has infinity's code
        const float aligner = 0.5f;                                       // its last bit is 2^-24
        const u32 tiny = bits_of(float_of(size) + aligner) - bits_of(aligner);
        const u32 normal = (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
        return is_nan(x) ? 0x7e00u : sign | (size < 0x38800000u ? tiny : normal);
    }
};

// COUNT adjacent numbers of a row, as they lie in memory.
template <class Numbers, int COUNT>
struct Run {
    static constexpr int BYTES = COUNT * Numbers::BYTES, IN_WORD = 4 / Numbers::BYTES;
    static constexpr int PRECISION = Numbers::PRECISION;
    u32 words[BYTES / 4];

    BS_DEVICE float operator[](int index) const { return Numbers::get(words, index); }

    // The bits of the largest magnitude as a float32, of `count` numbers in whole words.
    BS_DEVICE u32 largest(int first, int count) const {
        u32 sizes = words[first / IN_WORD];
#pragma unroll
        for (int i = first / IN_WORD + 1; i < (first + count) / IN_WORD; ++i)
            sizes = Numbers::largest(sizes, words[i]);
        return Numbers::float32_bits(sizes);
    }

    // The signs of eight numbers, in the top bits of as many digits of four bits.
    BS_DEVICE u32 signs(int first) const {
        const u32* from = words + first / IN_WORD;
        return (Numbers::even_signs(from) & 0x08080808u) | (Numbers::odd_signs(from) & 0x80808080u);
    }

    BS_DEVICE void clear(int first, int count) {
#pragma unroll
        for (int i = first / IN_WORD; i < (first + count) / IN_WORD; ++i) words[i] = 0;
    }

    BS_DEVICE void clear_nan(int first, int count) {
#pragma unroll
        for (int i = first; i < first + count; ++i)
            if (is_nan((*this)[i])) words[i / IN_WORD] &= ~Numbers::mask(i);
    }
};

}  // namespace bs::numbers
