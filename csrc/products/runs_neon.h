// A row tile of x by a tile of a weight on ARM, where whole codes are multiplied and scales meet sums: four rows of the
// weight to a register, a quad. The mainloop of int8_neon.h and bfmmla.h, which say how codes become numbers and which
// instruction multiplies them.
//
// A run is the part of a chunk that shares one scale of the weight, 16 or 32 long. It is RUN / 4 groups of columns
// (cpu_tiles.h): a register holds a group of each row of a quad.
#pragma once
#include "isa/neon.h"
#include "products/decoders.h"
#include "products/scales_neon.h"

namespace blockscale::ISA_NAMESPACE {

// total[m][quad] += scale * sum, of COUNT quads from FIRST of one run.
template <int M, int RUN, int FIRST, int COUNT, bool CAREFUL, class Weights, class Rows>
ALWAYS_INLINE void add_run(const Weights& weights, const uint8_t* codes, const Rows& x, const float* scale,
                           float32x4_t (*total)[QUADS]) {
  constexpr int AT_ONCE = Weights::GROUPS_AT_ONCE;
  typename Weights::template Sums<M, COUNT> sums;
  unrolled<RUN / 4 / AT_ONCE>([&](auto step) INLINED {
    typename Weights::Numbers numbers[AT_ONCE][COUNT];
    unrolled<COUNT>([&](auto q) INLINED {
      unrolled<AT_ONCE>([&](auto i) INLINED {
        constexpr int group = AT_ONCE * step + i;
        numbers[i][q] = weights.template decode<CAREFUL>(
            codes_of_group<Weights::BITS, group, Order::ROW>(codes + 16 * (FIRST + q)));
      });
    });
    sums.template add<AT_ONCE * step>(numbers, x);
    // Compilers would load and decode what comes next long before, and keep sums in memory for want of registers. The
    // CPU looks ahead by itself.
    asm volatile("" ::: "memory");
  });
  sums.apply(scale, x, FIRST, total);
}

// Eight rows of x take half a tile at a time: there are registers for 16 sums beside what multiplies them.
template <int M>
constexpr int QUADS_OF_ROWS = M > 4 ? QUADS / 2 : QUADS;

// totals[M][16] of one tile and one row tile.
template <int M, int RUN, class Weights, class Rows>
void multiply_runs(const Weights& given, const Format& format, const uint8_t* codes, const uint8_t* scales, Rows x,
                   int64_t k, float* totals) {
  constexpr int WORDS = Weights::BITS * RUN / cpu_tiles::CHUNK, COUNT = Weights::template QUADS_AT_ONCE<M>;
  const Weights weights = given;  // its tables stay in registers
  const int64_t blocks = k / format.block, runs = format.block / RUN;
  float32x4_t total[M][QUADS] = {};
  for_each_block(format, scales, blocks, [&](const float* scale) INLINED {
    for (int64_t s = 0; s < runs; ++s, codes += 64 * WORDS, x.template advance<M, RUN>()) {
      prefetch<WORDS>(codes);
      unrolled<QUADS / COUNT>([&](auto part) INLINED {
        constexpr int first = part * COUNT;
        with_care<RUN / 4, COUNT>(weights, codes + 16 * first, [&](auto careful) INLINED {
          add_run<M, RUN, first, COUNT, decltype(careful)::value>(weights, codes, x, scale, total);
        });
      });
    }
  });
  Weights::template Sums<M, COUNT>::store(total, weights.unit, totals);
}

// Sums of instructions that multiply 2xK by Kx2 matrices: a register has two rows of the weight, and of each the sums
// of two rows of x. total[m] has the first two rows of each quad, total[m + 1] the others.
template <int M, int OF>
ALWAYS_INLINE void store_matrices(const float32x4_t (*total)[OF], float unit, float* totals) {
  unrolled<M / 2>([&](auto pair) INLINED {  // in a loop, compilers keep totals in memory from the beginning
    unrolled<OF>([&](auto q) INLINED {
      constexpr int m = 2 * pair;
      float* const to = totals + m * cpu_tiles::ROWS + q * QUAD;
      vst1q_f32(to, vuzp1q_f32(total[m][q], total[m + 1][q]) * unit);
      vst1q_f32(to + cpu_tiles::ROWS, vuzp2q_f32(total[m][q], total[m + 1][q]) * unit);
    });
  });
}

}  // namespace blockscale::ISA_NAMESPACE
