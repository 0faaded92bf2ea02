// Quantisation: each lane takes some adjacent numbers, and lanes next to each other share a block.
//
//   BS_FORMAT        a Format of numbers/format.cuh
//   BS_SEARCH        FROM_AMAX, NEIGHBOURS or FOUR_OVER_SIX
//   BS_CARRY_FROM    of a power-of-two scale: see scale_search/block_scale.cuh
//   BS_TENSOR_SCALE  NONE; GIVEN, one per row; or FROM_LARGEST, POWER: derived, one per row
//   BS_NUMBERS       of x: Wide, BFloat16 or Float16
//   BS_PACKING       BIT_STREAM or BIT_PLANES
//   BS_BLOCKED       scales go into atoms of 128 x 4, else row by row
//   BS_WEIGHTED      squared errors have weights, column by column
//   BS_VALUES        numbers of a lane: whole groups of the packing
//   BS_THREADS       of a CTA
#include "generated/quantize_arguments.cuh"
#include "numbers/amax.cuh"
#include "numbers/tensor_scale.cuh"
#include "rows/memory.cuh"
#include "rows/packing.cuh"
#include "rows/rows.cuh"
#include "scale_search/quantize_block.cuh"
#include "scale_search/search.cuh"

using namespace bs;
using namespace bs::numbers;
using namespace bs::rows;
using namespace bs::scale_search;

using Kind = BS_FORMAT;
using Element = Kind::Element;
using Numbers = BS_NUMBERS;
using Rule = ScaleRule<Kind, BS_CARRY_FROM>;

constexpr int VALUES = BS_VALUES, THREADS = BS_THREADS;
constexpr int PART = VALUES < Kind::BLOCK ? VALUES : Kind::BLOCK;  // of a lane, in one block
constexpr int LANES = Kind::BLOCK / PART;
constexpr bool DERIVED = BS_TENSOR_SCALE == FROM_LARGEST || BS_TENSOR_SCALE == POWER;

template <class E>
struct Encoders {
    using Type = FloatEncoder<E>;
    BS_DEVICE void fill(const float*) {}
    Type encoder;
};

template <int BITS>
struct Encoders<Codebook<BITS>> {
    using Type = Table<BITS>;
    BS_DEVICE void fill(const float* codebook) {
        if (threadIdx.x == 0) encoder.ordinary = encoder.in_intervals = true;
        __syncthreads();
        encoder.fill(codebook, threadIdx.x, THREADS);
        __syncthreads();
        if constexpr (Type::HAS_INTERVALS) encoder.fill_intervals(threadIdx.x, THREADS);
        __syncthreads();
    }
    Type encoder;
};

using Encoder = Encoders<Element>::Type;
using Near = Brackets<Kind, BS_SEARCH == NEIGHBOURS>;

// What lanes look up.
struct Tables {
    Encoders<Element> encoders;
    Near near;

    BS_DEVICE void fill(const float* codebook) {
        encoders.fill(codebook);
        if constexpr (Near::EXIST) {
            if (threadIdx.x == 0) near.fit = true;
            __syncthreads();
            near.fill(codebook, threadIdx.x, THREADS);
            __syncthreads();
        }
    }
};

constexpr int BLOCKS = VALUES / PART;  // of a lane

// Scales of adjacent blocks lie side by side, in atoms up to four of them.
BS_DEVICE void write_scales(const QuantizeArguments& a, const Place& at, const u32 (&scales)[BLOCKS]) {
    constexpr int BYTES = Kind::Scale::BYTES;
    const u32 block = at.unit * VALUES / Kind::BLOCK;
    u8* to;
    if constexpr (BS_BLOCKED) {
        const u32 in_atom = at.row % 32 * 16 + at.row / 32 % 4 * 4 + block % 4;
        to = row_of(a.scales, at.group, at.row / 128) + size_t(block / 4) * 512 + in_atom;
    } else {
        to = row_of(a.scales, at.group, at.row) + size_t(block) * BYTES;
    }
    u32 words[(BLOCKS * BYTES + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) words[i * BYTES / 4] |= scales[i] << i * BYTES % 4 * 8;
    store_bytes<BLOCKS * BYTES>(words, to);
}

// The numbers and weights of a unit.
template <bool WEIGHTED>
struct Unit {
    using Weights = Unweighted<Kind, PART>;
    Run<Numbers, VALUES> run;

    BS_DEVICE Unit(const QuantizeArguments& a, const Place& at)
        : run(load_run<Run<Numbers, VALUES>>(row_of(a.x, at.group, at.row), at.unit)) {}
    BS_DEVICE Weights weights(int) const { return {}; }
};

template <>
struct Unit<true> : Unit<false> {
    using Weights = Weighted<Kind, PART>;
    Run<Wide, VALUES> importance;

    BS_DEVICE Unit(const QuantizeArguments& a, const Place& at)
        : Unit<false>(a, at),
          importance(load_run<Run<Wide, VALUES>>(row_of(a.importance, at.group, 0), at.unit)) {}
    BS_DEVICE Weights weights(int first) const { return {importance, first}; }
};

// All lanes of a warp take part; those without work of their own repeat another's and do not write.
BS_DEVICE void quantize_unit(const QuantizeArguments& a, const Tables& tables, const Place& at,
                         const Rule& rule, bool writes) {
    const Encoder& encoder = tables.encoders.encoder;
    Unit<BS_WEIGHTED> unit(a, at);
    Packed<Kind::BITS, BS_PACKING, VALUES, Encoder> packed;
    u32 scales[BLOCKS];
    bool lost[BLOCKS];
#pragma unroll
    for (int first = 0; first < VALUES; first += PART) {
        const BlockNumbers<Kind, PART> numbers(unit.run, first);
        const auto weights = unit.weights(first);
        const BlockScale scale = choose_scale<BS_SEARCH>(numbers, weights, rule, encoder, tables.near);
        const BlockQuantizer<Kind, PART, Encoder> block(numbers, scale, rule.tensor_scale(), encoder);
        put_codes(block, unit.run, packed, first);
        lost[first / PART] = numbers.ZERO_CODES && numbers.lost;
        scales[first / PART] = block.scale();
    }
    if (!writes) return;
    packed.finish();
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        if (lost[i]) packed.clear(i * PART, PART);
    constexpr int BYTES = VALUES * Kind::BITS / 8;
    store_bytes<BYTES>(packed.words(), row_of(a.codes, at.group, at.row) + size_t(at.unit) * BYTES);
    if (threadIdx.x % LANES == 0) write_scales(a, at, scales);
}

// One CTA makes a row: its tensor scale first, then its codes from numbers still in the cache.
template <TensorScale KIND>
BS_DEVICE void quantize_row(const QuantizeArguments& a, const Tables& tables, u32 row) {
    const u32 units = a.rows.in_row.divisor;
    Place at = place_of(a.rows, row * units);
    u32 largest = 0;
    for (u32 unit = threadIdx.x; unit < units; unit += THREADS) {
        const auto run = load_run<Run<Numbers, VALUES>>(row_of(a.x, at.group, at.row), unit);
        largest = larger(largest, finite_amax(run));
    }
    const float amax = float_of(largest_of_all<THREADS>(largest));
    const float tensor_scale = TensorScaleRule<Kind, KIND>::of_amax(amax);
    if (threadIdx.x == 0)
        *reinterpret_cast<float*>(row_of(a.tensor_scale, at.group, at.row)) = tensor_scale;
    const Rule rule(tensor_scale);
    for (u32 first = 0; first < units; first += THREADS) {
        const u32 unit = first + threadIdx.x;
        at.unit = smaller(unit, units - 1);
        quantize_unit(a, tables, at, rule, unit < units);
    }
}

// Threads of an SM that registers are left for: as many as the way that nearly all blocks go allows. What a
// search does where candidates are ambiguous would take more.
constexpr int threads_of_sm() {
    if (BS_SEARCH == FROM_AMAX) return Element::IS_FLOAT ? 1024 : 896;
    if (BS_SEARCH == FOUR_OVER_SIX) return 640;
    if (PART <= 16) return BS_WEIGHTED ? 512 : 896;
    return BS_WEIGHTED ? 384 : Element::IS_FLOAT ? 512 : 640;
}

extern "C" __global__ void __launch_bounds__(THREADS, threads_of_sm() / THREADS)
    quantize(const __grid_constant__ QuantizeArguments a) {
    __shared__ Tables tables;
    ptx::wait_for_prerequisites();
    tables.fill(a.codebook);
    if constexpr (DERIVED) {
        const u32 rows = divide(a.rows.units, a.rows.in_row);
        for (u32 row = blockIdx.x; row < rows; row += gridDim.x)
            quantize_row<BS_TENSOR_SCALE>(a, tables, row);
    } else {
        // From the end: what was read last, for a tensor scale or before, may still be in the cache.
        const u32 begin = (gridDim.x - 1 - blockIdx.x) * a.share;
        const u32 end = smaller(begin + a.share, a.rows.units);
        for (u32 first = begin; first < end; first += THREADS) {
            const u32 unit = first + threadIdx.x;
            const Place at = place_of(a.rows, smaller(unit, end - 1));
            const float* given = reinterpret_cast<float*>(row_of(a.tensor_scale, at.group, at.row));
            const Rule rule(BS_TENSOR_SCALE == GIVEN ? *given : 1.0f);
            quantize_unit(a, tables, at, rule, unit < end);
        }
    }
}
