// Dequantisation: each lane takes eight adjacent codes, which are whole bytes of any packing.
//
//   BS_FORMAT        a Format of numbers/format.cuh
//   BS_TENSOR_SCALE  NONE, or GIVEN, one per row
//   BS_NUMBERS       of the output: Wide, BFloat16 or Float16
//   BS_PACKING       BIT_STREAM or BIT_PLANES
//   BS_BLOCKED       scales lie in atoms of 128 x 4, else row by row
//   BS_THREADS       of a CTA
//   BS_REPEAT        units that a thread has under way at a time
//   BS_EXACT         a decode::Element, where bfloat16 holds every value times its scale and nothing else is wanted
#include "decode/rows.cuh"
#include "generated/dequantize_arguments.cuh"
#include "numbers/dequantize_block.cuh"
#include "numbers/run.cuh"
#include "numbers/tensor_scale.cuh"
#include "rows/memory.cuh"
#include "rows/packing.cuh"
#include "rows/rows.cuh"

using namespace bs;
using namespace bs::numbers;
using namespace bs::rows;

using Kind = BS_FORMAT;
using Element = Kind::Element;
using Numbers = BS_NUMBERS;

constexpr int VALUES = 8, THREADS = BS_THREADS, REPEAT = BS_REPEAT;

template <class E>
struct Decoders {
    BS_DEVICE void fill(const float*) {}
    BS_DEVICE float value(u32 code) const { return FloatDecoder<Kind::BITS, E>::value(code); }
};

template <int BITS>
struct Decoders<Codebook<BITS>> {
    float values[1 << BITS];

    BS_DEVICE void fill(const float* codebook) {
        for (int i = threadIdx.x; i < 1 << BITS; i += THREADS) values[i] = codebook[i];
        __syncthreads();
    }
    BS_DEVICE float value(u32 code) const { return values[code]; }
};

// Eight codes as they lie in memory. Of bit planes, a byte of each plane.
struct Codes {
    u32 words[BS_PACKING == BIT_PLANES ? Kind::BITS : (Kind::BITS + 3) / 4];

    BS_DEVICE void load(const u8* row, u32 unit) {
        if constexpr (BS_PACKING == BIT_PLANES) {
#pragma unroll
            for (int bit = 0; bit < Kind::BITS; ++bit)
                words[bit] = __ldg(row + size_t(unit / 4) * (4 * Kind::BITS) + 4 * bit + unit % 4);
        } else {
            load_bytes<Kind::BITS>(words, row + size_t(unit) * Kind::BITS);
        }
    }

    BS_DEVICE u32 get(int index) const {
        u32 code = 0;
        if constexpr (BS_PACKING == BIT_PLANES) {
#pragma unroll
            for (int bit = 0; bit < Kind::BITS; ++bit) code |= (words[bit] >> index & 1u) << bit;
            return code;
        } else {
            return stream_code<Kind::BITS>(words, index);
        }
    }
};

BS_DEVICE u32 load_scale(const DequantizeArguments& a, const Place& at) {
    const u32 block = at.unit * VALUES / Kind::BLOCK;
    if constexpr (BS_BLOCKED) {
        const u32 in_atom = at.row % 32 * 16 + at.row / 32 % 4 * 4 + block % 4;
        return __ldg(row_of(a.scales, at.group, at.row / 128) + size_t(block / 4) * 512 + in_atom);
    } else if constexpr (Kind::WIDE_SCALE) {
        return __ldg(reinterpret_cast<const u32*>(row_of(a.scales, at.group, at.row)) + block);
    } else {
        return __ldg(row_of(a.scales, at.group, at.row) + block);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) dequantize(const __grid_constant__ DequantizeArguments a) {
    __shared__ Decoders<Element> decoder;
    ptx::trigger_dependents();
    ptx::wait_for_prerequisites();
    decoder.fill(a.codebook);
    const u32 step = gridDim.x * THREADS * REPEAT;
    for (u32 first = blockIdx.x * THREADS * REPEAT; first < a.rows.units; first += step) {
        Place at[REPEAT];
        Codes codes[REPEAT];
        u32 stored[REPEAT];
        float tensor_scale[REPEAT];
#pragma unroll
        for (int i = 0; i < REPEAT; ++i) {  // all loads first
            at[i] = place_of(a.rows, smaller(first + i * THREADS + threadIdx.x, a.rows.units - 1));
            codes[i].load(row_of(a.codes, at[i].group, at[i].row), at[i].unit);
            stored[i] = load_scale(a, at[i]);
            const auto* given = reinterpret_cast<float*>(row_of(a.tensor_scale, at[i].group, at[i].row));
            tensor_scale[i] = BS_TENSOR_SCALE == GIVEN ? __ldg(given) : 1.0f;
        }
#pragma unroll
        for (int i = 0; i < REPEAT; ++i) {
            if (first + i * THREADS + threadIdx.x >= a.rows.units) break;
            const float scale = ScaleDecoder<Kind>::decode(stored[i]);
            u32 words[VALUES * Numbers::BYTES / 4];
#ifdef BS_EXACT
            decode::decode_eight<decode::BS_EXACT, Kind::BITS>(words, codes[i].words, scale);
#else
#pragma unroll
            for (int v = 0; v < VALUES; v += 2)
                Numbers::put_pair(words, v, scaled(decoder.value(codes[i].get(v)), scale, tensor_scale[i]),
                                  scaled(decoder.value(codes[i].get(v + 1)), scale, tensor_scale[i]));
#endif
            store_bytes<VALUES * Numbers::BYTES>(words, row_of(a.out, at[i].group, at[i].row) +
                                                            size_t(at[i].unit) * (VALUES * Numbers::BYTES));
        }
    }
}
