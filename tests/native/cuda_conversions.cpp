// The arithmetic of the CUDA conversions, compiled for the host: a block has one lane.
//
//   FORMAT        a Format of format.cuh
//   RULES         RULE(search, carry_from) for each rule, comma-separated
//   TENSOR_SCALE  NONE, FROM_LARGEST or POWER
#include <cstdint>

#include "dequantize_block.cuh"
#include "numbers.cuh"
#include "quantize_block.cuh"
#include "tensor_scale.cuh"

using Kind = FORMAT;

template <class Element>
struct Tables {
    explicit Tables(const float*) {}
    FloatEncoder<Element> encoder;
    float value(u32 code) const { return FloatDecoder<Kind::BITS, Element>::value(code); }
};

template <int BITS>
struct Tables<Codebook<BITS>> {
    explicit Tables(const float* values) {
        encoder.ordinary = true;
        encoder.fill(values, 0, 1);
    }
    Table<BITS> encoder;
    float value(u32 code) const { return encoder.value(code); }
};

using Block = BlockNumbers<Kind, Kind::BLOCK>;

template <class Numbers>
Block read(const void* x, int64_t block) {
    Run<Numbers, Kind::BLOCK> run;
    std::memcpy(run.words, static_cast<const char*>(x) + block * run.BYTES, run.BYTES);
    return Block(run, 0);
}

template <Search SEARCH, u32 CARRY_FROM>
void quantize(int64_t dtype, const void* x, const float* tensor_scale, const float* codebook,
              int64_t blocks, uint8_t* codes, uint32_t* scales) {
    const Tables<Kind::Element> tables(codebook);
    using Rule = ScaleRule<Kind, CARRY_FROM>;
    const auto read_block = dtype == 0 ? read<Wide> : dtype == 1 ? read<BFloat16> : read<Float16>;
    for (int64_t b = 0; b < blocks; ++b, codes += Kind::BLOCK) {
        const Block numbers = read_block(x, b);
        const BlockQuantizer<Kind, Rule, SEARCH, Kind::BLOCK, decltype(tables.encoder)> block(
            numbers, tensor_scale[b], tables.encoder);
        block.codes([&](int i, u32 even, u32 odd) {
            codes[i] = uint8_t(even >> tables.encoder.SHIFT);
            codes[i + 1] = uint8_t(odd >> tables.encoder.SHIFT);
        });
        scales[b] = block.scale();
    }
}

#define RULE(search, carry_from) quantize<search, carry_from>

using Quantize = void (*)(int64_t, const void*, const float*, const float*, int64_t, uint8_t*, uint32_t*);

extern "C" void quantize_blocks(int64_t rule, int64_t dtype, const void* x, const float* tensor_scale,
                                const float* codebook, int64_t blocks, uint8_t* codes,
                                uint32_t* scales) {
    static const Quantize rules[] = {RULES};
    rules[rule](dtype, x, tensor_scale, codebook, blocks, codes, scales);
}

// Each pair of codes with a scale of its own; the three dtypes one after the other.
extern "C" void dequantize_pairs(const uint8_t* codes, const uint32_t* scales, const float* tensor_scale,
                                 const float* codebook, int64_t pairs, uint32_t* wide,
                                 uint32_t* bfloat16, uint32_t* float16) {
    const Tables<Kind::Element> tables(codebook);
    for (int64_t i = 0; i < pairs; ++i) {
        const float scale = ScaleDecoder<Kind>::decode(scales[i]);
        const float even = scaled(tables.value(codes[2 * i]), scale, tensor_scale[i]);
        const float odd = scaled(tables.value(codes[2 * i + 1]), scale, tensor_scale[i]);
        Wide::put_pair(wide + 2 * i, 0, even, odd);
        BFloat16::put_pair(bfloat16 + i, 0, even, odd);
        Float16::put_pair(float16 + i, 0, even, odd);
    }
}

extern "C" void widen(const uint32_t* bfloat16, const uint32_t* float16, int64_t count, float* from_bfloat16,
                      float* from_float16) {
    for (int64_t i = 0; i < count; ++i) {
        from_bfloat16[i] = BFloat16::get(bfloat16 + i / 2, int(i % 2));
        from_float16[i] = Float16::get(float16 + i / 2, int(i % 2));
    }
}

template <TensorScale KIND>
void tensor_scales_by(const float* amax, int64_t count, float* out) {
    if constexpr (KIND != NONE)
        for (int64_t i = 0; i < count; ++i) out[i] = TensorScaleRule<Kind, KIND>::of_amax(amax[i]);
}

extern "C" void tensor_scales(const float* amax, int64_t count, float* out) {
    tensor_scales_by<TENSOR_SCALE>(amax, count, out);
}
