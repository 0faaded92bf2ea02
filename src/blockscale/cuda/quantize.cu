// Quantisation: each lane takes some adjacent numbers, and lanes next to each other share a block.
//
//   BS_FORMAT        a Format of format.cuh
//   BS_SEARCH        FROM_AMAX, NEIGHBOURS or FOUR_OVER_SIX
//   BS_CARRY_FROM    of a power-of-two scale: see block_scale.cuh
//   BS_TENSOR_SCALE  NONE; GIVEN, one per row; or FROM_LARGEST, POWER: derived, one per row
//   BS_NUMBERS       of x: Wide, BFloat16 or Float16
//   BS_PACKING       BIT_STREAM or BIT_PLANES
//   BS_BLOCKED       scales go into atoms of 128 x 4, else row by row
//   BS_WEIGHTED      squared errors have weights, column by column
//   BS_VALUES        numbers of a lane: whole groups of the packing
//   BS_THREADS       of a thread block
#include "amax.cuh"
#include "packing.cuh"
#include "quantize_block.cuh"
#include "rows.cuh"
#include "tensor_scale.cuh"

struct Arguments {
    Matrices x;             // [groups, n, k], 16-byte aligned rows
    Matrices tensor_scale;  // float32 [groups, n, 1]; written where it is derived
    const float* codebook;
    Matrices importance;  // float32 [groups, k]: without rows
    Matrices codes;
    Matrices scales;  // a row of atoms counts as a row where they are blocked
    Rows rows;
};

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
    EXACT void fill(const float*) {}
    Type encoder;
};

template <int BITS>
struct Encoders<Codebook<BITS>> {
    using Type = Table<BITS>;
    EXACT void fill(const float* codebook) {
        if (threadIdx.x == 0) encoder.ordinary = true;
        __syncthreads();
        encoder.fill(codebook, threadIdx.x, THREADS);
        __syncthreads();
    }
    Type encoder;
};

using Encoder = Encoders<Element>::Type;

EXACT void write_scale(const Arguments& a, const Place& at, u32 block, u32 scale) {
    if constexpr (BS_BLOCKED) {
        const u32 in_atom = at.row % 32 * 16 + at.row / 32 % 4 * 4 + block % 4;
        a.scales.row(at.group, at.row / 128)[size_t(block / 4) * 512 + in_atom] = u8(scale);
    } else if constexpr (Kind::WIDE_SCALE) {
        reinterpret_cast<u32*>(a.scales.row(at.group, at.row))[block] = scale;
    } else {
        a.scales.row(at.group, at.row)[block] = u8(scale);
    }
}

// The numbers and weights of a unit.
template <bool WEIGHTED>
struct Unit {
    using Weights = Unweighted<Kind, PART>;
    Run<Numbers, VALUES> run;

    EXACT Unit(const Arguments& a, const Place& at)
        : run(load_run<Run<Numbers, VALUES>>(a.x.row(at.group, at.row), at.unit)) {}
    EXACT Weights weights(int) const { return {}; }
};

template <>
struct Unit<true> : Unit<false> {
    using Weights = Weighted<Kind, PART>;
    Run<Wide, VALUES> importance;

    EXACT Unit(const Arguments& a, const Place& at)
        : Unit<false>(a, at),
          importance(load_run<Run<Wide, VALUES>>(a.importance.row(at.group, 0), at.unit)) {}
    EXACT Weights weights(int first) const { return {importance, first}; }
};

template <class Block, class Packed>
EXACT void put_codes(const Block& block, Packed& packed, int first) {
    if constexpr (BS_PACKING == BIT_PLANES && !Block::Element::IS_FLOAT)
        block.code_bits([&](int i, int bit, bool is_set) { packed.put_bit(first + i, bit, is_set); });
    else
        block.codes([&](int i, u32 even, u32 odd) {
            packed.template put_pair<Encoder::SHIFT>(first + i, even, odd);
        });
}

// All lanes of a warp take part; those without work of their own repeat another's and do not write.
EXACT void quantize_unit(const Arguments& a, const Encoder& encoder, const Place& at,
                         float tensor_scale, bool writes) {
    Unit<BS_WEIGHTED> unit(a, at);
    Packed<Kind::BITS, BS_PACKING, VALUES> packed;
#pragma unroll
    for (int first = 0; first < VALUES; first += PART) {
        const BlockNumbers<Kind, PART> numbers(unit.run, first);
        const auto weights = unit.weights(first);
        using Weights = Unit<BS_WEIGHTED>::Weights;
        const BlockQuantizer<Kind, Rule, BS_SEARCH, PART, Encoder, Weights> block(numbers, weights,
                                                                                  tensor_scale, encoder);
        put_codes(block, packed, first);
        if (writes && threadIdx.x % LANES == 0)
            write_scale(a, at, (at.unit * VALUES + first) / Kind::BLOCK, block.scale());
    }
    constexpr int BYTES = VALUES * Kind::BITS / 8;
    if (writes)
        store_bytes<BYTES>(packed.words(), a.codes.row(at.group, at.row) + size_t(at.unit) * BYTES);
}

// One thread block makes a row: its tensor scale first, then its codes from numbers still in the cache.
template <TensorScale KIND>
EXACT void quantize_row(const Arguments& a, const Encoder& encoder, u32 row) {
    const u32 units = a.rows.in_row.divisor;
    Place at = a.rows.place(row * units);
    u32 largest = 0;
    for (u32 unit = threadIdx.x; unit < units; unit += THREADS)
        largest = larger(largest, finite_amax<Numbers, VALUES>(a.x.row(at.group, at.row), unit));
    const float amax = float_of(largest_of_all<THREADS>(largest));
    const float tensor_scale = TensorScaleRule<Kind, KIND>::of_amax(amax);
    if (threadIdx.x == 0)
        *reinterpret_cast<float*>(a.tensor_scale.row(at.group, at.row)) = tensor_scale;
    for (u32 first = 0; first < units; first += THREADS) {
        const u32 unit = first + threadIdx.x;
        at.unit = smaller(unit, units - 1);
        quantize_unit(a, encoder, at, tensor_scale, unit < units);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) quantize(const __grid_constant__ Arguments a) {
    __shared__ Encoders<Element> encoders;
    encoders.fill(a.codebook);
    if constexpr (DERIVED) {
        const u32 rows = a.rows.in_row.divide(a.rows.units);
        for (u32 row = blockIdx.x; row < rows; row += gridDim.x)
            quantize_row<BS_TENSOR_SCALE>(a, encoders.encoder, row);
    } else {
        const u32 step = gridDim.x * THREADS;
        for (u32 first = blockIdx.x * THREADS; first < a.rows.units; first += step) {
            const u32 unit = first + threadIdx.x;
            const Place at = a.rows.place(smaller(unit, a.rows.units - 1));
            const float* given = reinterpret_cast<float*>(a.tensor_scale.row(at.group, at.row));
            const float tensor_scale = BS_TENSOR_SCALE == GIVEN ? *given : 1.0f;
            quantize_unit(a, encoders.encoder, at, tensor_scale, unit < a.rows.units);
        }
    }
}
