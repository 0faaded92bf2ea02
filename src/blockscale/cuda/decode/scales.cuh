// Scale bytes to float32, exactly: subnormals, NaN and unused codes (which mean NaN) included.
#pragma once
#include "decode/floats.cuh"

namespace bs::decode {

BS_DEVICE u32 byte_of(u32 word, int i) { return ptx::prmt(word, 0, 0x4440 + i); }

template <Scale SCALE>
struct ScaleDecoder;

template <>
struct ScaleDecoder<UE4M3> {
    // The four bytes of a word, two at a time by the conversion of weights.
    static BS_DEVICE void four(float (&s)[4], u32 word) {
        u32 unused = word & 0x80808080u;  // a sign: such bytes become 0x7F
        word = (word | (unused - (unused >> 7))) & 0x7F7F7F7Fu;
        u32 low = bytes_to_float16<E4M3>(word), high = bytes_to_float16<E4M3>(word >> 16);
        s[0] = ptx::float16_low(low), s[1] = ptx::float16_high(low);
        s[2] = ptx::float16_low(high), s[3] = ptx::float16_high(high);
    }
};

template <>
struct ScaleDecoder<E8M0> {
    static BS_DEVICE void four(float (&s)[4], u32 word) {
#if __CUDA_ARCH__ >= 1000
        by_conversion(s, word);
#else
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Code 0 is 2^-127, a subnormal; code 255 is NaN, which Inf * 0 + Inf makes.
            float power = __uint_as_float(max(byte_of(word, i) << 23, 0x00400000u));
            s[i] = __fmaf_rn(power, 0.0f, power);
        }
#endif
    }

    // Two at a time to bfloat16, which is the upper half of a float32.
    static BS_DEVICE void by_conversion(float (&s)[4], u32 word) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 pair = ptx::e8m0x2_to_bfloat16x2(word >> 16 * i);
            s[2 * i] = __uint_as_float(pair << 16), s[2 * i + 1] = __uint_as_float(pair & 0xffff0000u);
        }
    }
};

template <>
struct ScaleDecoder<E4M4> {
    static BS_DEVICE void four(float (&s)[4], u32 word) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = __uint_as_float(byte_of(word, i) << 19) * 0x1p116f;
    }
};

}  // namespace bs::decode
