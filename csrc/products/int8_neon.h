// A row tile of int8 x by a tile of a weight on ARM, by the mainloop of runs_neon.h.
//
// A byte look-up turns the codes of a register into integers, and one instruction multiplies them by four bytes of x,
// which it takes from a lane of a register that serves all quads: `sdot`, or `smmla` for two rows of x at once. CPUs
// without them take four instructions.
#pragma once
#include "products/kernels.h"
#include "products/runs_neon.h"

namespace blockscale::ISA_NAMESPACE {

struct ArmInt8Rows {
  const uint32_t* words;
  const float* scales;

  template <int M, int RUN>
  ALWAYS_INLINE void advance() {
    words += RUN / 4 * M;
    scales += M;
  }
};

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

// Sums begin with the bits of 1.5 * 2^23: read as float32, one that has gained less than 2^22 is that number and the gain.
// A subtraction then converts it, where the instruction that converts keeps one pipe of two busy for two cycles (N1).
constexpr float CONVERTS = 0x1.8p23f;

inline const float32x4_t NO_SUM = {CONVERTS, CONVERTS, CONVERTS, CONVERTS};

// LOADED, for each sum: compilers would keep it in a register and copy that, by an instruction of the pipes that multiply.
// Where tables take many registers, copies are as quick, or quicker.
template <bool LOADED = true>
ALWAYS_INLINE int32x4_t no_sum() {
  if constexpr (!LOADED) return vreinterpretq_s32_f32(NO_SUM);
  int32x4_t begin;
  asm volatile("ldr %q0, %1" : "=w"(begin) : "m"(NO_SUM));
  return begin;
}

ALWAYS_INLINE float32x4_t number_of(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(CONVERTS));
}

// Sums of M rows of x and COUNT quads over a run, by dot products.
template <int M, int COUNT>
struct DotSums {
  int32x4_t sums[M][COUNT];

  ALWAYS_INLINE DotSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = no_sum(); });
    });
  }

  // Groups STEP and STEP + 1: those words of each row of x.
  template <int STEP>
  ALWAYS_INLINE void add(const int8x16_t (&weights)[2][COUNT], const ArmInt8Rows& x) {
    unrolled<2>([&](auto half) INLINED {
      unrolled<M>([&](auto m) INLINED {
        constexpr int at = (STEP + half) * M + m;
        const int8x16_t lanes = vreinterpretq_s8_u32(vld1q_u32(x.words + at / 4 * 4));
        unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = dot4<at % 4>(sums[m][q], weights[half][q], lanes); });
      });
    });
  }

  // total[m][quad] += sum * (scale of the weight * scale of x)
  template <int OF>
  ALWAYS_INLINE void apply(const float* scale, const ArmInt8Rows& x, int first, float32x4_t (*total)[OF]) const {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED {
        const auto both = vmulq_n_f32(vld1q_f32(scale + QUAD * (first + q)), x.scales[m]);
        total[m][first + q] = vfmaq_f32(total[m][first + q], number_of(sums[m][q]), both);
      });
    });
  }

  template <int OF>
  static ALWAYS_INLINE void store(const float32x4_t (*total)[OF], float unit, float* totals) {
    unrolled<M>([&](auto m) INLINED {  // in a loop, compilers keep totals in memory from the beginning
      unrolled<OF>([&](auto q) INLINED { vst1q_f32(totals + m * cpu_tiles::ROWS + q * QUAD, total[m][q] * unit); });
    });
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
// The same by products of 2x8 and 8x2 matrices (store_matrices).
template <int M, int COUNT>
struct MatrixSums {
  int32x4_t sums[M][COUNT];

  ALWAYS_INLINE MatrixSums() {
    unrolled<M>([&](auto m) INLINED {
      unrolled<COUNT>([&](auto q) INLINED { sums[m][q] = no_sum(); });
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
  ALWAYS_INLINE void add(const int8x16_t (&weights)[2][COUNT], const ArmInt8Rows& x) {
    int8x16_t rows[2][COUNT];
    unrolled<COUNT>([&](auto q) INLINED {
      const auto first = vreinterpretq_s32_s8(weights[0][q]), second = vreinterpretq_s32_s8(weights[1][q]);
      rows[0][q] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
      rows[1][q] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    });
    unrolled<M / 2>([&](auto pair) INLINED {
      const int8x16_t both = rows_of_x<STEP, 2 * pair>(x.words);
      unrolled<COUNT>([&](auto q) INLINED {
        sums[2 * pair][q] = vmmlaq_s32(sums[2 * pair][q], rows[0][q], both);
        sums[2 * pair + 1][q] = vmmlaq_s32(sums[2 * pair + 1][q], rows[1][q], both);
      });
    });
  }

  template <int OF>
  ALWAYS_INLINE void apply(const float* scale, const ArmInt8Rows& x, int first, float32x4_t (*total)[OF]) const {
    unrolled<COUNT>([&](auto q) INLINED {
      const float32x4_t rows = vld1q_f32(scale + QUAD * (first + q));
      const float32x4_t scales[2] = {vzip1q_f32(rows, rows), vzip2q_f32(rows, rows)};
      unrolled<M>([&](auto m) INLINED {
        const float32x2_t pair = vld1_f32(x.scales + m / 2 * 2);
        const float32x4_t both = scales[m % 2] * vcombine_f32(pair, pair);
        total[m][first + q] = vfmaq_f32(total[m][first + q], number_of(sums[m][q]), both);
      });
    });
  }

  template <int OF>
  static ALWAYS_INLINE void store(const float32x4_t (*total)[OF], float unit, float* totals) {
    store_matrices<M>(total, unit, totals);
  }
};

template <int M, int COUNT>
using Int8Sums = std::conditional_t<M == 1, DotSums<M, COUNT>, MatrixSums<M, COUNT>>;
#else
template <int M, int COUNT>
using Int8Sums = DotSums<M, COUNT>;
#endif

// Codes to integers.
template <int BITS_>
struct Int8Weights {
  template <int M, int COUNT>
  using Sums = Int8Sums<M, COUNT>;
  template <int M>
  static constexpr int QUADS_AT_ONCE = QUADS_OF_ROWS<M>;
  using Numbers = int8x16_t;
  static constexpr int BITS = BITS_, GROUPS_AT_ONCE = 2;  // `smmla` takes eight columns
  static constexpr bool ALWAYS_PLAIN = true;
  int8x16_t table;
  float unit;

  explicit Int8Weights(const IntegerTable& integers) : table(vld1q_s8(integers.integers)), unit(integers.unit) {}

  template <bool CAREFUL>
  ALWAYS_INLINE Numbers decode(uint8x16_t codes) const {
    return vqtbl1q_s8(table, codes);
  }
};

// A tile's integers, quad after quad and group after group, and its scales, for many rows of x.
template <int BITS>
void stage_tile(const IntegerTable& integers, const Format& format, const uint8_t* codes, const uint8_t* scales,
                int64_t k, int8_t* stage, float* staged_scales) {
  if (format.scale_bytes == 1) decode_scales(format, scales, k / format.block, staged_scales);
  const Int8Weights<BITS> weights(integers);
  for (int64_t chunk = 0; chunk < cpu_tiles::chunks(k); ++chunk, codes += 64 * BITS, stage += QUAD * cpu_tiles::CHUNK) {
    prefetch<BITS>(codes);
    unrolled<cpu_tiles::GROUPS>([&](auto group) INLINED {
      unrolled<QUADS>([&](auto q) INLINED {
        vst1q_s8(stage + q * QUAD * cpu_tiles::padded(k) + 16 * group,
                 weights.template decode<false>(codes_of_group<BITS, group, Order::ROW>(codes + 16 * q)));
      });
    });
  }
}

template <int BITS, int M, int RUN>
void int8_tile(const IntegerTable& integers, const Format& format, const uint8_t* codes, const uint8_t* scales,
               const Int8Rows& x, int64_t k, float* totals) {
  multiply_runs<M, RUN>(Int8Weights<BITS>(integers), format, codes, scales, ArmInt8Rows{x.words, x.scales}, k, totals);
}

// totals[M][16], of which a quad has four: runs * RUN are the columns that share a scale.
template <int M, int RUN>
void staged_quad(const int8_t* stage, const float* scales, int64_t runs, ArmInt8Rows x, int64_t k, float unit,
                 float* totals) {
  using Sums = Int8Sums<M, 1>;
  float32x4_t total[M][1] = {};
  for (int64_t left = k / RUN, of_block = runs; left > 0; --left) {
    Sums sums;
    unrolled<RUN / 8>([&](auto step) INLINED {
      const int8x16_t weights[2][1] = {{vld1q_s8(stage + 32 * step)}, {vld1q_s8(stage + 32 * step + 16)}};
      sums.template add<2 * step>(weights, x);
      asm volatile("" ::: "memory");  // as in add_run
    });
    sums.apply(scales, x, 0, total);
    stage += QUAD * RUN;
    x.template advance<M, RUN>();
    if (--of_block == 0) {
      of_block = runs;
      scales += cpu_tiles::ROWS;
    }
  }
  Sums::store(total, unit, totals);
}

// One quad for all of k, then the next: its totals stay in registers, where those of a tile would be loaded and stored
// for every run.
template <int M, int RUN>
void staged_tile(const IntegerTable& integers, const Format& format, const int8_t* stage, const uint8_t* scales,
                 const float* staged_scales, const Int8Rows& x, int64_t k, float* totals) {
  const float* const decoded = format.scale_bytes == 1 ? staged_scales : reinterpret_cast<const float*>(scales);
  for (int q = 0; q < QUADS; ++q)
    staged_quad<M, RUN>(stage + q * QUAD * cpu_tiles::padded(k), decoded + QUAD * q, format.block / RUN,
                        ArmInt8Rows{x.words, x.scales}, k, integers.unit, totals + QUAD * q);
}

}  // namespace blockscale::ISA_NAMESPACE
