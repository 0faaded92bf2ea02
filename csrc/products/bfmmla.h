// Rows of bfloat16 x on ARM CPUs that multiply matrices of bfloat16: each weight is read once, decoded in registers to
// bfloat16, and multiplied by `bfmmla`, which takes four columns of two rows of the weight and of two rows of x.
//
// The scale of a block is applied to its sums, in float32, so that a decoded number is rounded to bfloat16 only where a
// codebook has others. Whatever the row tile, a row's sums are added in the same order: its bits depend on no other
// row. How `bfmmla` rounds, and what that costs, stands in docs/design/0014-arm.md.
//
// x is arranged row tile after row tile, at least two rows to each: [groups of columns][rows][4 columns], the columns
// of a group as cpu_tiles::column_of has them.
#pragma once
#include "convert.h"
#include "products/kernels.h"
#include "products/row_loop.h"
#include "products/runs_neon.h"

namespace blockscale::ISA_NAMESPACE {

struct BfloatRows {
  const uint16_t* numbers;

  template <int M, int RUN>
  ALWAYS_INLINE void advance() {
    numbers += M * RUN;
  }
};

// Sums of M rows of x and COUNT quads over a run.
template <int M, int COUNT>
struct BfloatSums {
  float32x4_t sums[M][COUNT];

  ALWAYS_INLINE BfloatSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = vdupq_n_f32(0); });
    });
  }

  template <int GROUP>
  ALWAYS_INLINE void add(const uint16x8x2_t (&weights)[1][COUNT], const BfloatRows& x) {
    unrolled<M>([&](auto m) INLINED {
      const auto rows = vreinterpretq_bf16_u16(vld1q_u16(x.numbers + (GROUP * M + m / 2 * 2) * 4));
      unrolled<COUNT>([&](auto q) INLINED {
        const auto two = vreinterpretq_bf16_u16(weights[0][q].val[m % 2]);
        sums[m][q] = vbfmmlaq_f32(sums[m][q], two, rows);
      });
    });
  }

  ALWAYS_INLINE void apply(const float* scale, const BfloatRows&, int first, float32x4_t (*total)[QUADS]) const {
    unrolled<COUNT>([&](auto q) INLINED {
      const float32x4_t rows = vld1q_f32(scale + QUAD * (first + q));
      const float32x4_t scales[2] = {vzip1q_f32(rows, rows), vzip2q_f32(rows, rows)};
      unrolled<M>([&](auto m) INLINED {
        total[m][first + q] = vfmaq_f32(total[m][first + q], sums[m][q], scales[m % 2]);
      });
    });
  }

  static ALWAYS_INLINE void store(const float32x4_t (*total)[QUADS], float unit, float* totals) {
    store_matrices<M>(total, unit, totals);
  }
};

// The codes of a group of a quad to bfloat16: two rows to a register.
template <class Decoder>
struct BfloatWeights {
  template <int M, int COUNT>
  using Sums = BfloatSums<M, COUNT>;
  template <int M>
  static constexpr int QUADS_AT_ONCE = QUADS_OF_ROWS<M>;
  using Numbers = uint16x8x2_t;
  static constexpr int BITS = Decoder::BITS, GROUPS_AT_ONCE = 1;
  static constexpr bool ALWAYS_PLAIN = Decoder::ALWAYS_PLAIN;
  static constexpr float unit = Decoder::GAIN;
  Decoder decoder;

  template <int COUNT>
  ALWAYS_INLINE bool plain(const uint8_t* quad) const {
    return decoder.template plain<COUNT>(quad);
  }

  template <bool CAREFUL>
  ALWAYS_INLINE Numbers decode(uint8x16_t codes) const {
    return decoder.template upper_halves<CAREFUL>(codes);
  }
};

// Calls work with what decodes a format. A codebook's numbers are rounded to bfloat16 here, once.
template <class Work>
inline void with_bfloat_weights(const Format& format, Work work) {
  if (format.decoder == E4M3) return work(BfloatWeights<HalfDecoder<4>>{HalfDecoder<4>(format)});
  if (format.decoder == E5M2) return work(BfloatWeights<HalfDecoder<5>>{HalfDecoder<5>(format)});
  float table[64];
  for (int i = 0; i < 1 << format.bits; ++i) table[i] = from_bfloat16(to_bfloat16(format.table[i]));
  Format rounded = format;
  rounded.table = table;
  switch (format.bits) {  // Python asks for no others: blockscale/kernels/matmul/cpu.py
    case 2: return work(BfloatWeights<PlaneDecoder<2, 2>>{PlaneDecoder<2, 2>(rounded)});
    case 3: return work(BfloatWeights<PlaneDecoder<3, 2>>{PlaneDecoder<3, 2>(rounded)});
    case 4: return work(BfloatWeights<PlaneDecoder<4, 2>>{PlaneDecoder<4, 2>(rounded)});
    case 5: return work(BfloatWeights<PlaneDecoder<5, 2>>{PlaneDecoder<5, 2>(rounded)});
    default: return work(BfloatWeights<PlaneDecoder<6, 2>>{PlaneDecoder<6, 2>(rounded)});
  }
}

void bfmmla(const Matmul& call, const uint16_t* x, int64_t group, int64_t tile) {
  const TileOf at(call, group, tile);
  for_each_row_tile<BFMMLA_ROWS>(at, [&](auto rows, int which, int64_t row, float* totals) {
    constexpr int M = decltype(rows)::value == 1 ? 2 : decltype(rows)::value;
    const BfloatRows from{x + row * call.k};
    with_bfloat_weights(at.format(which), [&](const auto& weights) {
      constexpr int BITS = std::decay_t<decltype(weights)>::BITS;
      // Only of these codes do the two halves of a chunk lie in words of their own.
      if constexpr (cpu_tiles::in_whole_bytes(BITS))
        if (call.format.block == 16)
          return multiply_runs<M, 16>(weights, call.format, at.codes(which), at.scales(which), from, call.k, totals);
      multiply_runs<M, 32>(weights, call.format, at.codes(which), at.scales(which), from, call.k, totals);
    });
  });
}

}  // namespace blockscale::ISA_NAMESPACE
