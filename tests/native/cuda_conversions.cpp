// The arithmetic of the CUDA conversions, compiled for the host: a block has one lane.
//
//   FORMAT        a Format of format.cuh
//   RULES         RULE(search, carry_from) for each rule, comma-separated
//   TENSOR_SCALE  NONE, FROM_LARGEST or POWER
#include <cstdint>
#include <type_traits>

static int reciprocal_off;  // one library for all that a GPU may be off, since compiling takes long
#define BS_RECIPROCAL_OFF reciprocal_off

#include "numbers/dequantize_block.cuh"
#include "numbers/run.cuh"
#include "rows/packing.cuh"
#include "scale_search/quantize_block.cuh"
#include "scale_search/search.cuh"
#include "numbers/tensor_scale.cuh"

using namespace bs;
using namespace bs::numbers;
using namespace bs::rows;
using namespace bs::scale_search;

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
        encoder.ordinary = encoder.in_intervals = true;
        encoder.fill(values, 0, 1);
        if (encoder.HAS_INTERVALS) encoder.fill_intervals(0, 1);
    }
    Table<BITS> encoder;
    float value(u32 code) const { return encoder.value(code); }
};

using Block = BlockNumbers<Kind, Kind::BLOCK>;

struct Call {
    int64_t dtype, blocks;
    const void* x;
    const float *tensor_scale, *codebook, *importance;  // one for each block, and for each number
    uint8_t* codes;
    uint32_t* scales;
};

static int64_t not_near;  // blocks whose codes took more than a lookup

using Plain = Unweighted<Kind, Kind::BLOCK>;
using Heavy = Weighted<Kind, Kind::BLOCK>;

template <class Weights>
Weights read_weights(const float* importance, int64_t first) {
    if constexpr (std::is_same<Weights, Plain>::value) {
        return {};
    } else {
        Run<Wide, Kind::BLOCK> run;
        std::memcpy(run.words, importance + first, run.BYTES);
        return {run, 0};
    }
}

template <Search SEARCH, u32 CARRY_FROM, class Weights, class Numbers>
void quantize(const Call& call) {
    const Tables<Kind::Element> tables(call.codebook);
    using Encoder = decltype(tables.encoder);
    Brackets<Kind, SEARCH == NEIGHBOURS> near;
    near.fit = true;
    if constexpr (near.EXIST) near.fill(call.codebook, 0, 1);
    using Rule = ScaleRule<Kind, CARRY_FROM>;
    Run<Numbers, Kind::BLOCK> run;
    for (int64_t b = 0; b < call.blocks; ++b) {
        const int64_t first = b * Kind::BLOCK;
        std::memcpy(run.words, static_cast<const char*>(call.x) + b * run.BYTES, run.BYTES);
        const Block numbers(run, 0);
        const Weights weights = read_weights<Weights>(call.importance, first);
        const Rule rule(call.tensor_scale[b]);
        const BlockScale scale = choose_scale<SEARCH>(numbers, weights, rule, tables.encoder, near);
        const BlockQuantizer<Kind, Kind::BLOCK, Encoder> block(numbers, scale, rule.tensor_scale(),
                                                               tables.encoder);
        Packed<Kind::BITS, BIT_STREAM, Kind::BLOCK, Encoder> packed;
        put_codes(block, run, packed, 0);
        if constexpr (block.HAS_INTERVALS) not_near += !block.near_codes([](int, u32, u32) {});
        packed.finish();
        if (numbers.ZERO_CODES && numbers.lost) packed.clear(0, Kind::BLOCK);
        for (int i = 0; i < Kind::BLOCK; ++i)
            call.codes[first + i] = uint8_t(stream_code<Kind::BITS>(packed.words(), i));
        call.scales[b] = block.scale();
    }
}

template <Search SEARCH, u32 CARRY_FROM, class Weights>
void quantize(const Call& call) {
    if (call.dtype == 0) return quantize<SEARCH, CARRY_FROM, Weights, Wide>(call);
    if (call.dtype == 1) return quantize<SEARCH, CARRY_FROM, Weights, BFloat16>(call);
    quantize<SEARCH, CARRY_FROM, Weights, Float16>(call);
}

template <Search SEARCH, u32 CARRY_FROM>
void quantize_as_weighted(const Call& call) {
    if constexpr (SEARCH == NEIGHBOURS)
        if (call.importance) return quantize<SEARCH, CARRY_FROM, Heavy>(call);
    quantize<SEARCH, CARRY_FROM, Plain>(call);
}

#define RULE(search, carry_from) quantize_as_weighted<search, carry_from>

extern "C" void quantize_blocks(int64_t rule, int64_t dtype, int64_t blocks, const void* x,
                                const float* tensor_scale, const float* codebook,
                                const float* importance, uint8_t* codes, uint32_t* scales) {
    static void (*const rules[])(const Call&) = {RULES};
    rules[rule]({dtype, blocks, x, tensor_scale, codebook, importance, codes, scales});
}

extern "C" void set_reciprocal_off(int off) { reciprocal_off = off; }

// Since the last time this was asked.
extern "C" int64_t blocks_that_were_not_near() {
    const int64_t count = not_near;
    not_near = 0;
    return count;
}

// How many scales a search weighs with one lookup for each number; 0 where the codebook does not allow it.
extern "C" int64_t scales_of_a_lookup(const float* codebook) {
    Brackets<Kind, true> near;
    near.fit = true;
    if constexpr (near.EXIST) near.fill(codebook, 0, 1);
    return near.fit ? near.GROUP : 0;
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

// Of quotients by one d whose mantissa is m, with a reciprocal `off` units in the last place from the nearest
// float32. Where refining gives the nearest, quotients are correctly rounded (Markstein 1990).
static int64_t wrong_quotients_by(u32 m, int off) {
    const float d = float_of(0x3f800000u | m), nearest = 1.0f / d;
    const float r = refined(float_of(bits_of(nearest) + off), d);
    if (r == nearest) return 0;
    int64_t wrong = 0;
    for (u32 n = 0; n < 1u << 23; ++n) {
        const float x = float_of(0x3f800000u | n);
        wrong += quick_quotient(x, d, r) != x / d;
    }
    return wrong;
}

extern "C" int64_t wrong_quotients() {
    int64_t wrong = 0;
    for (u32 m = 0; m < 1u << 23; ++m)
        for (int off = -2; off <= 2; ++off)
            if (is_quick_divisor(float_of(0x3f800000u | m))) wrong += wrong_quotients_by(m, off);
    return wrong;
}

// By a constant, whose reciprocal the compiler rounds.
extern "C" int64_t wrong_quotients_by_largest() {
    int64_t wrong = 0;
    for (u32 n = 0; n < 1u << 23; ++n) {
        const float x = float_of(0x3f800000u | n), d = Kind::Element::MAX;
        wrong += quick_quotient(x, d, 1.0f / d) != x / d;
    }
    return wrong;
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
