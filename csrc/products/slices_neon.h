// Numbers of x as slices of eight bits (slice_rows.h) times weights that are small integers, E2M1: dot products of bytes
// whose sums are exact within a run, where decoding the weights to float32 would take several times as many instructions.
#pragma once
#include "products/int8_neon.h"
#include "products/row_loop.h"
#include "products/stream_neon.h"

namespace blockscale::ISA_NAMESPACE {

struct ArmSlices {
  const uint32_t* words;
  const float* units;
  int64_t runs = 0;

  // The unit is that of a chunk, which may be two runs.
  template <int M, int RUN>
  ALWAYS_INLINE void advance() {
    words += RUN / 4 * M * SLICES;
    if (RUN == cpu_tiles::CHUNK || ++runs % 2 == 0) units += M;
  }
};

// Sums of the slices of M rows of x and COUNT quads over a run.
template <int M, int COUNT>
struct SliceSums {
  int32x4_t sums[M][COUNT][SLICES];

  ALWAYS_INLINE SliceSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED {
        unrolled<SLICES>([&](auto s) INLINED { sums[m][q][s] = no_sum(); });
      });
    });
  }

  template <int STEP>
  ALWAYS_INLINE void add(const int8x16_t (&weights)[2][COUNT], const ArmSlices& x) {
    unrolled<2>([&](auto half) INLINED {
      unrolled<M>([&](auto m) INLINED {
        unrolled<SLICES>([&](auto s) INLINED {
          constexpr int at = ((STEP + half) * M + m) * SLICES + s;
          const int8x16_t lanes = vreinterpretq_s8_u32(vld1q_u32(x.words + at / 4 * 4));
          unrolled<COUNT>([&](auto q) INLINED {
            sums[m][q][s] = dot4<at % 4>(sums[m][q][s], weights[half][q], lanes);
          });
        });
      });
    });
  }

  // A run makes sums below 2^16 (MOST_SLICED), so that two slices together are below 2^24: exact. The third rounds once.
  ALWAYS_INLINE void apply(const float* scale, const ArmSlices& x, int first, float32x4_t (*total)[QUADS]) const {
    const float32x4_t base = vdupq_n_f32(256);
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED {
        float32x4_t sum = number_of(sums[m][q][0]);
        unrolled<SLICES - 1>([&](auto s) INLINED { sum = vfmaq_f32(number_of(sums[m][q][s + 1]), sum, base); });
        const float32x4_t rows = vld1q_f32(scale + QUAD * (first + q));
        total[m][first + q] = vfmaq_f32(total[m][first + q], vmulq_n_f32(sum, x.units[m]), rows);
      });
    });
  }

  static ALWAYS_INLINE void store(const float32x4_t (*total)[QUADS], float unit, float* totals) {
    DotSums<M, COUNT>::store(total, unit, totals);
  }
};

struct SliceWeights : Int8Weights<4> {
  template <int M, int COUNT>
  using Sums = SliceSums<M, COUNT>;
  template <int M>
  static constexpr int QUADS_AT_ONCE = QUADS / M;  // whose sums are twelve registers

  // Units of x have the weight's in them: sums of integers pass float32's end before their values do.
  explicit SliceWeights(const IntegerTable& integers) : Int8Weights(integers) { unit = 1; }
};

// What slices left out of a few chunks, as float32 products.
template <int M, bool HALVES>
void add_rests(const TileOf& at, int which, const SliceRows& x, float* totals) {
  using Decoder = PlaneDecoder<4, 2>;
  const Format format = at.format(which);
  const Decoder decode(format);
  for (int64_t i = 0; i < x.rest_count; ++i) {
    const int64_t chunk = x.rests[i].chunk, first = chunk * cpu_tiles::CHUNK, left = at.call.k - first;
    float sums[M * cpu_tiles::ROWS];
    stream_tile<Decoder, M, HALVES>(decode, format, at.codes(which) + chunk * 64 * Decoder::BITS,
                                    at.scales(which) + first / format.block * cpu_tiles::ROWS * format.scale_bytes,
                                    x.rests[i].x, left < cpu_tiles::CHUNK ? left : cpu_tiles::CHUNK, sums);
    for (int j = 0; j < M * cpu_tiles::ROWS; ++j) totals[j] += sums[j];
  }
}

template <int RUN>
void slices_group(const Matmul& call, const IntegerTable* tables, const SliceRows* x, int64_t group,
                  int64_t tile) {
  const TileOf at(call, group, tile);
  for_each_row_tile<SLICE_ROWS>(at, [&](auto m, int which, int64_t row, float* totals) {
    constexpr int M = decltype(m)::value;
    const SliceRows& rows = x[row / SLICE_ROWS];
    multiply_runs<M, RUN>(SliceWeights(tables[which]), call.format, at.codes(which), at.scales(which),
                          ArmSlices{rows.words, rows.units}, call.k, totals);
    if (rows.rest_count) add_rests<M, RUN == 16>(at, which, rows, totals);
  });
}

// One tile of one group, for every row of it. tables: of gate and up. x: the row tiles of the group.
void slices(const Matmul& call, const IntegerTable* tables, const SliceRows* x, int64_t group, int64_t tile) {
  if (call.format.block == 16) return slices_group<16>(call, tables, x, group, tile);
  slices_group<32>(call, tables, x, group, tile);
}

}  // namespace blockscale::ISA_NAMESPACE
