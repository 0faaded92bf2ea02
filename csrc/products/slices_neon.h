// Numbers of x as slices of eight bits (slice_rows.h) times weights as slices of eight bits (slice_table.h): dot products
// of bytes whose sums are exact within a run, where decoding the weights to float32 would take several times as many
// instructions.
#pragma once
#include "products/int8_neon.h"
#include "products/row_loop.h"

namespace blockscale::ISA_NAMESPACE {

struct ArmSlices {
  const uint32_t* words;
  const float* units;
  float unit;  // of the weight
  int64_t runs = 0;

  // The unit is that of a chunk, which may be two runs.
  template <int M, int RUN>
  ALWAYS_INLINE void advance() {
    words += RUN / 4 * M * SLICES;
    if (RUN == cpu_tiles::CHUNK || ++runs % 2 == 0) units += M;
  }

  // Units of x times that of the weight, a row to a lane.
  template <int M>
  ALWAYS_INLINE float32x4_t units_of_weight() const {
    if constexpr (M == 4) return vmulq_n_f32(vld1q_f32(units), unit);
    const float32x2_t two = M == 2 ? vld1_f32(units) : vdup_n_f32(*units);
    const float32x2_t scaled = vmul_n_f32(two, unit);
    return vcombine_f32(scaled, scaled);
  }
};

// The codes of a group of a quad as slices, the highest first.
template <int OF_WEIGHT>
struct WeightSlices {
  int8x16_t slices[OF_WEIGHT];
};

// Products of slices that are worth the same have one sum.
constexpr int sums_of(int of_weight) { return SLICES + of_weight - 1; }

// As many quads as have 16 sums, one at least.
constexpr int quads_for(int most, int sums) { return most == 1 || most * sums <= 16 ? most : quads_for(most / 2, sums); }

// Sums of the slices of M rows of x and COUNT quads over a run.
template <int M, int COUNT, int OF_WEIGHT>
struct SliceSums {
  static constexpr int SUMS = sums_of(OF_WEIGHT);
  int32x4_t sums[M][COUNT][SUMS];

  ALWAYS_INLINE SliceSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED {
        unrolled<SUMS>([&](auto s) INLINED { sums[m][q][s] = no_sum<OF_WEIGHT == 1>(); });
      });
    });
  }

  template <int STEP, int AT_ONCE>
  ALWAYS_INLINE void add(const WeightSlices<OF_WEIGHT> (&weights)[AT_ONCE][COUNT], const ArmSlices& x) {
    unrolled<AT_ONCE>([&](auto i) INLINED {
      unrolled<M>([&](auto m) INLINED {
        unrolled<SLICES>([&](auto s) INLINED {
          constexpr int at = ((STEP + i) * M + m) * SLICES + s;
          const int8x16_t lanes = vreinterpretq_s8_u32(vld1q_u32(x.words + at / 4 * 4));
          unrolled<OF_WEIGHT>([&](auto w) INLINED {
            unrolled<COUNT>([&](auto q) INLINED {
              sums[m][q][s + w] = dot4<at % 4>(sums[m][q][s + w], weights[i][q].slices[w], lanes);
            });
          });
        });
      });
    });
  }

  // A sum has up to three products of bytes for each of 32 columns, below 2^22 (number_of). What is rounded here is counted
  // in slice_table.h.
  ALWAYS_INLINE void apply(const float* scale, const ArmSlices& x, int first, float32x4_t (*total)[QUADS]) const {
    const float32x4_t base = vdupq_n_f32(256), units = x.template units_of_weight<M>();
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED {
        float32x4_t sum = number_of(sums[m][q][0]);
        unrolled<SUMS - 1>([&](auto s) INLINED { sum = vfmaq_f32(number_of(sums[m][q][s + 1]), sum, base); });
        const float32x4_t rows = vld1q_f32(scale + QUAD * (first + q));
        total[m][first + q] = vfmaq_f32(total[m][first + q], vmulq_laneq_f32(sum, units, m), rows);
      });
    });
  }

  static ALWAYS_INLINE void store(const float32x4_t (*total)[QUADS], float unit, float* totals) {
    DotSums<M, COUNT>::store(total, unit, totals);
  }
};

// Codes to slices.
template <int BITS_, int OF_WEIGHT>
struct SliceWeights {
  template <int M, int COUNT>
  using Sums = SliceSums<M, COUNT, OF_WEIGHT>;
  template <int M>
  static constexpr int QUADS_AT_ONCE = quads_for(OF_WEIGHT == 1 ? QUADS : QUADS / 2, M * sums_of(OF_WEIGHT));
  using Numbers = WeightSlices<OF_WEIGHT>;
  static constexpr int BITS = BITS_, GROUPS_AT_ONCE = 2;
  static constexpr bool ALWAYS_PLAIN = true;
  // Units of x have the weight's in them: sums of integers pass float32's end before their values do.
  static constexpr float unit = 1;
  ByteTable<BITS> tables[OF_WEIGHT];

  explicit SliceWeights(const SlicedTable& table) {
    for (int w = 0; w < OF_WEIGHT; ++w) tables[w] = ByteTable<BITS>(table.integers[w]);
  }

  template <bool CAREFUL>
  ALWAYS_INLINE Numbers decode(uint8x16_t codes) const {
    Numbers numbers;
    unrolled<OF_WEIGHT>([&](auto w) INLINED { numbers.slices[w] = vreinterpretq_s8_u8(tables[w][codes]); });
    return numbers;
  }
};

// Calls work with what looks codes up.
template <class Work>
inline void with_slice_weights(const Format& format, const SlicedTable& table, Work work) {
  const auto with_bits = [&](auto bits) {
    constexpr int BITS = decltype(bits)::value;
    if constexpr (least_slices(BITS) == 1)
      if (table.slices == 1) return work(SliceWeights<BITS, 1>(table));
    if constexpr (most_slices(BITS) == 3)
      if (table.slices == 3) return work(SliceWeights<BITS, 3>(table));
    work(SliceWeights<BITS, 2>(table));
  };
  switch (format.bits) {  // Python asks for no others: blockscale/kernels/matmul/cpu_slices.py
    case 2: return with_bits(std::integral_constant<int, 2>());
    case 3: return with_bits(std::integral_constant<int, 3>());
    case 4: return with_bits(std::integral_constant<int, 4>());
    case 5: return with_bits(std::integral_constant<int, 5>());
    default: return with_bits(std::integral_constant<int, 6>());
  }
}

// One tile of one group, for every row of it. tables: of gate and up. x: the row tiles of the group.
void slices(const Matmul& call, const SlicedTable* tables, const SliceRows* x, int64_t group, int64_t tile) {
  const TileOf at(call, group, tile);
  for_each_row_tile<SLICE_ROWS>(at, [&](auto m, int which, int64_t row, float* totals) {
    constexpr int M = decltype(m)::value;
    const SliceRows& rows = x[row / SLICE_ROWS];
    const ArmSlices from{rows.words, rows.units, tables[which].unit};
    with_slice_weights(call.format, tables[which], [&](const auto& weights) {
      using Weights = std::decay_t<decltype(weights)>;
      if constexpr (std::is_same_v<Weights, SliceWeights<4, 1>>)
        if (call.format.block == 16)
          return multiply_runs<M, 16>(weights, call.format, at.codes(which), at.scales(which), from, call.k, totals);
      multiply_runs<M, 32>(weights, call.format, at.codes(which), at.scales(which), from, call.k, totals);
    });
    if (rows.rest_count)
      neon::add_rests(at.format(which), at.codes(which), at.scales(which), rows, call.k, M, totals);
  });
}

}  // namespace blockscale::ISA_NAMESPACE
