// A row tile of int8 x by a tile of a weight on ARM: four rows of the weight to a register, a quad.
//
// A register holds four bytes of each row of a quad. A byte look-up turns its codes into integers, and one
// instruction multiplies them by four bytes of x, which it takes from a lane of a register that serves all quads:
// `sdot`, or `smmla` for two rows of x at once. CPUs without them take four instructions.
#pragma once
#include "cpu_tiles.h"
#include "isa/neon.h"
#include "products/decode.h"
#include "products/kernels.h"

namespace blockscale::ISA_NAMESPACE {

// sums += four products of bytes, of each row of a quad; x is a lane.
template <int LANE>
ALWAYS_INLINE int32x4_t dot4(int32x4_t sums, int8x16_t weights, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_laneq_s32(sums, weights, x, LANE);
#else
  const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), LANE));
  const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(four));  // no byte is -128: two products fit
  return vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(weights, four)));
#endif
}

// Sums of M rows of x and COUNT quads over a run, by dot products.
template <int M, int COUNT>
struct DotSums {
  int32x4_t sums[M][COUNT];

  ALWAYS_INLINE DotSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = vdupq_n_s32(0); });
    });
  }

  // Two bytes' worth of codes, one after the other: words STEP and STEP + 1 of each row of x.
  template <int STEP>
  ALWAYS_INLINE void add(const int8x16_t (&weights)[2][COUNT], const uint32_t* x) {
    unrolled<2>([&](auto half) INLINED {
      unrolled<M>([&](auto m) INLINED {
        constexpr int at = (STEP + half) * M + m;
        const int8x16_t lanes = vreinterpretq_s8_u32(vld1q_u32(x + at / 4 * 4));
        unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = dot4<at % 4>(sums[m][q], weights[half][q], lanes); });
      });
    });
  }

  // total[m][quad] += sum * (scale of the weight * scale of x)
  ALWAYS_INLINE void apply(const f32x16& scale, const float* x_scale, int first, float32x4_t (*total)[QUADS]) const {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED {
        const auto both = (float32x4_t)(scale.part[first + q] * x_scale[m]);
        total[m][first + q] = vfmaq_f32(total[m][first + q], vcvtq_f32_s32(sums[m][q]), both);
      });
    });
  }

  static ALWAYS_INLINE void store(const float32x4_t (*total)[QUADS], float unit, float* totals) {
    for (int m = 0; m < M; ++m)
      for (int q = 0; q < QUADS; ++q) vst1q_f32(totals + m * cpu_tiles::ROWS + q * QUAD, total[m][q] * unit);
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
// The same by products of 2x8 and 8x2 matrices: a register of sums has two rows of the weight, and of each the sums of
// two rows of x. Totals are kept so too: total[m] has the first two rows of each quad, total[m + 1] the others.
template <int M, int COUNT>
struct MatrixSums {
  int32x4_t sums[M][COUNT];

  ALWAYS_INLINE MatrixSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = vdupq_n_s32(0); });
    });
  }

  // Words STEP and STEP + 1 of rows PAIR and PAIR + 1 of x, those of a row side by side.
  template <int STEP, int PAIR>
  static ALWAYS_INLINE int8x16_t rows_of_x(const uint32_t* x) {
    if constexpr (M == 2) {
      const uint32x4_t both = vld1q_u32(x + STEP * M);
      return vreinterpretq_s8_u32(vzip1q_u32(both, vextq_u32(both, both, 2)));
    } else {
      constexpr int at = PAIR / 4 * 4;
      const uint32x4_t first = vld1q_u32(x + STEP * M + at), second = vld1q_u32(x + (STEP + 1) * M + at);
      return vreinterpretq_s8_u32(PAIR % 4 ? vzip2q_u32(first, second) : vzip1q_u32(first, second));
    }
  }

  template <int STEP>
  ALWAYS_INLINE void add(const int8x16_t (&weights)[2][COUNT], const uint32_t* x) {
    int8x16_t rows[2][COUNT];
    unrolled<COUNT>([&](auto q) INLINED {
      const auto first = vreinterpretq_s32_s8(weights[0][q]), second = vreinterpretq_s32_s8(weights[1][q]);
      rows[0][q] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
      rows[1][q] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    });
    unrolled<M / 2>([&](auto pair) INLINED {
      const int8x16_t both = rows_of_x<STEP, 2 * pair>(x);
      unrolled<COUNT>([&](auto q) INLINED {
        sums[2 * pair][q] = vmmlaq_s32(sums[2 * pair][q], rows[0][q], both);
        sums[2 * pair + 1][q] = vmmlaq_s32(sums[2 * pair + 1][q], rows[1][q], both);
      });
    });
  }

  ALWAYS_INLINE void apply(const f32x16& scale, const float* x_scale, int first, float32x4_t (*total)[QUADS]) const {
    unrolled<COUNT>([&](auto q) INLINED {
      const auto rows = (float32x4_t)scale.part[first + q];
      const float32x4_t scales[2] = {vzip1q_f32(rows, rows), vzip2q_f32(rows, rows)};
      unrolled<M>([&](auto m) INLINED {
        const float32x2_t pair = vld1_f32(x_scale + m / 2 * 2);
        const float32x4_t both = scales[m % 2] * vcombine_f32(pair, pair);
        total[m][first + q] = vfmaq_f32(total[m][first + q], vcvtq_f32_s32(sums[m][q]), both);
      });
    });
  }

  static ALWAYS_INLINE void store(const float32x4_t (*total)[QUADS], float unit, float* totals) {
    for (int m = 0; m < M; m += 2)
      for (int q = 0; q < QUADS; ++q) {
        float* to = totals + m * cpu_tiles::ROWS + q * QUAD;
        vst1q_f32(to, vuzp1q_f32(total[m][q], total[m + 1][q]) * unit);
        vst1q_f32(to + cpu_tiles::ROWS, vuzp2q_f32(total[m][q], total[m + 1][q]) * unit);
      }
  }
};

template <int M, int COUNT>
using Int8Sums = std::conditional_t<M == 1, DotSums<M, COUNT>, MatrixSums<M, COUNT>>;
#else
template <int M, int COUNT>
using Int8Sums = DotSums<M, COUNT>;
#endif

// totals[M][16] of one tile and one row tile. Eight rows of x take half a tile at a time: there are registers for 16
// sums beside what multiplies them.
template <int BITS, int M, int RUN>
void int8_tile(const IntegerTable& integers, const Format& format, const uint8_t* codes, const uint8_t* scales,
               Int8Rows x, int64_t k, float* totals) {
  constexpr int WORDS = BITS * RUN / cpu_tiles::CHUNK, STEPS = 8 / BITS, COUNT = M > 4 ? QUADS / 2 : QUADS;
  const int64_t blocks = k / format.block, runs = format.block / RUN;
  const int8x16_t table = vld1q_s8(integers.integers);
  const uint8x16_t mask = vdupq_n_u8((1 << BITS) - 1);
  float32x4_t total[M][QUADS] = {};
  for (int64_t block = 0; block < blocks; ++block, scales += cpu_tiles::ROWS * format.scale_bytes) {
    const f32x16 scale = scale_vector(format, scales);
    prefetch_scales(scales);
    for (int64_t s = 0; s < runs; ++s, codes += 64 * WORDS, x.words += RUN / 4 * M, x.scales += M) {
      prefetch<WORDS>(codes);
      unrolled<QUADS / COUNT>([&](auto part) INLINED {
        constexpr int first = part * COUNT;
        Int8Sums<M, COUNT> sums;
        unrolled<WORDS>([&](auto w) INLINED {
          unrolled<STEPS / 2>([&](auto two) INLINED {
            int8x16_t weights[2][COUNT];
            unrolled<COUNT>([&](auto q) INLINED {
              const uint8x16_t word = vld1q_u8(codes + 64 * w + 16 * (first + q));
              unrolled<2>([&](auto half) INLINED {
                constexpr int shift = (2 * two + half) * BITS;
                uint8x16_t code = word;
                if constexpr (shift > 0) code = vshrq_n_u8(word, shift);
                if constexpr (shift + BITS < 8) code = vandq_u8(code, mask);
                weights[half][q] = vqtbl1q_s8(table, code);
              });
            });
            sums.template add<STEPS * w + 2 * two>(weights, x.words);
          });
        });
        sums.apply(scale, x.scales, first, total);
      });
    }
  }
  Int8Sums<M, COUNT>::store(total, integers.unit, totals);
}

}  // namespace blockscale::ISA_NAMESPACE
