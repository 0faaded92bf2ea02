// Codes to 16-bit floats: the words of a lane (layouts/fragments.py) -> the A operand of a step.
//
// The integer pipe is what a decoding kernel runs out of: it takes half an instruction per cycle, and
// beside the memory there is time for about two of them a weight. So bits stand where few find them:
//   - floats of 4 and 6 bits are brought to where a 16-bit float has its fields, by shifts and masks
//     (shifts to the left are multiplications, which another pipe does), then multiplied by a power of
//     two: exact, and right for subnormals;
//   - tables are looked up as bytes in registers (decode/table.cuh), or by the pair in shared memory
//     (decode/shared_table.cuh);
//   - floats of 8 bits have a hardware conversion to float16 from sm_89 on.
#pragma once
#include "generated/enums.cuh"
#include "ptx/half_pair.cuh"
#include "ptx/scalar.cuh"

namespace bs::decode {

template <class T, Element ELEMENT, int BITS, bool SYMMETRIC>
struct Decoder;

// A sign and three bits below it, of eight codes in a word: pairs of them, in the two halves of a register. The sign comes to
// its place in a 16-bit float, the others to bits 6 to 8, or UP bits above.
template <int UP>
BS_DEVICE void signs_and_three(u32 (&d)[4], u32 w) {
    constexpr u32 THREE = 0x01C001C0u, HOME = 0x80008000u | THREE;
    const u32 turned = ptx::rotate_left(w, 6);
    d[0] = w & HOME;
    d[1] = (w << 3) & HOME;
    d[2] = turned & HOME;
    // Copies of the eight bits that are left, shifted by 3, 8 and 14: no two of them meet, and each place has one.
    d[3] = ((turned & 0x001B001Bu) * (1u << 3 | 1u << 8 | 1u << 14)) & HOME;
#pragma unroll
    for (int u = 0; u < 4; u++)
        if (UP > 0) d[u] = ptx::mad_lo(d[u] & THREE, (1u << UP) - 1, d[u]);
}

// Four bits: sign, two of exponent, one of mantissa; as bits of a 16-bit float they mean 2^-LIFT of it.
template <class T, bool SYMMETRIC>
struct Decoder<T, E2M1, 4, SYMMETRIC> {
    static const int LIFT = (T::is_bfloat16 ? 127 : 15) - 1;

    BS_DEVICE void load(const float*) {}

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        bits(d, words, q);
#pragma unroll
        for (int u = 0; u < 4; u++) d[u] = T::times(d[u], T::power_of_two(LIFT));
    }

    // Without the last multiplication, for those who have another one to make.
    BS_DEVICE void bits(u32 (&d)[4], const u32* words, int q) const {
        signs_and_three<T::is_bfloat16 ? 0 : 3>(d, words[q]);
    }
};

// Six bits: four above, as if they were a float of 4 bits, and two below.
template <class T, Element ELEMENT>
struct SixBits {
    static const int BIAS = ELEMENT == E2M3 ? 1 : 3;
    static const int MANTISSA = ELEMENT == E2M3 ? 3 : 2;
    static const int FIELD = T::is_bfloat16 ? 7 : 10;       // mantissa bits of the 16-bit float
    static const int AT = FIELD - MANTISSA;                 // where the lowest bit comes to stand
    static const u32 BOTTOM = 0x00010001u * (3u << AT);
    static const int LIFT = (T::is_bfloat16 ? 127 : 15) - BIAS;

    BS_DEVICE void load(const float*) {}

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        const u32 below = words[3 * (q / 2) + 2];
        signs_and_three<AT + 2 - 6>(d, words[3 * (q / 2) + q % 2]);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int from = 4 * u + 2 * (q % 2);
            d[u] |= (from < AT ? below << (AT - from) : below >> (from - AT)) & BOTTOM;
            d[u] = T::times(d[u], T::power_of_two(LIFT));
        }
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, E2M3, 6, SYMMETRIC> : SixBits<T, E2M3> {};
template <class T, bool SYMMETRIC>
struct Decoder<T, E3M2, 6, SYMMETRIC> : SixBits<T, E3M2> {};

// Two bytes -> two float16, which hold both kinds of 8-bit floats exactly, infinities and NaN too.
template <Element ELEMENT>
BS_DEVICE u32 bytes_to_float16(u32 pair) {
    u32 d;
    if (ELEMENT == E5M2) return ptx::prmt(pair, 0, 0x1404);
#if __CUDA_ARCH__ >= 890
    d = ptx::e4m3x2_to_float16x2(pair);
#else
    u32 wide = ptx::prmt(pair, 0, 0x1404);
    d = ptx::Float16x2::times((wide & 0x80008000u) | ((wide >> 1) & 0x3F803F80u), ptx::Float16x2::power_of_two(8));
    // All ones are NaN; taken for a number they are 480. The comparison answers 1.0, 0x3C00.
    const u32 special = ptx::equal_float16x2(d & 0x7FFF7FFFu, 0x5F805F80u);
    d |= special | special << 1;
#endif
    return d;
}

template <class T, Element ELEMENT>
struct EightBits {
    BS_DEVICE void load(const float*) {}

    static BS_DEVICE u32 two(u32 pair) {
        u32 d = bytes_to_float16<ELEMENT>(pair);
        return T::is_bfloat16 ? T::from_floats(ptx::float16_low(d), ptx::float16_high(d)) : d;
    }

    BS_DEVICE void step(u32 (&d)[4], const u32* words, int q) const {
        d[0] = two(words[2 * q]);
        d[1] = two(words[2 * q + 1]);
        d[2] = two(words[2 * q] >> 16);
        d[3] = two(words[2 * q + 1] >> 16);
    }
};

template <class T, bool SYMMETRIC>
struct Decoder<T, E4M3, 8, SYMMETRIC> : EightBits<T, E4M3> {};
template <class T, bool SYMMETRIC>
struct Decoder<T, E5M2, 8, SYMMETRIC> : EightBits<T, E5M2> {};

}  // namespace bs::decode
