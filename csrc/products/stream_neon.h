// The streaming product of stream.h on ARM: a quad of rows at a time (isa/neon.h), since sixteen rows are four registers,
// and decoding them together would leave none for sums.
#pragma once
#include "products/decoders.h"

namespace blockscale::ISA_NAMESPACE {

// total[m] += scale * sums of COUNT groups of a quad's chunk. x: the chunk's, [32][M].
template <int FIRST, int COUNT, int M, bool CAREFUL, class Decoder>
ALWAYS_INLINE void add_groups(const Decoder& decode, const uint8_t* quad, const float* x, float32x4_t scale,
                              float32x4_t* total) {
  constexpr int CHAINS = 4 / M;  // additions wait for each other: few rows take columns in turns
  float32x4_t sums[M][CHAINS];
  unrolled<M>([&](auto m) INLINED {
    unrolled<CHAINS>([&](auto c) INLINED { sums[m][c] = vdupq_n_f32(0); });
  });
  for_each_column<FIRST, COUNT, CAREFUL>(decode, quad, [&](auto column, float32x4_t rows) INLINED {
    unrolled<M>([&](auto m) INLINED {
      constexpr int at = column * M + m, chain = column % CHAINS;
      sums[m][chain] = vfmaq_laneq_f32(sums[m][chain], rows, vld1q_f32(x + at / 4 * 4), at % 4);
    });
  });
  unrolled<M>([&](auto m) INLINED {
    float32x4_t sum = sums[m][0];
    unrolled<CHAINS - 1>([&](auto c) INLINED { sum = vaddq_f32(sum, sums[m][c + 1]); });
    total[m] = vfmaq_f32(total[m], sum, scale);
  });
}

// A quad's chunk. HALVES: it has two scales.
template <int M, bool HALVES, bool CAREFUL, class Decoder>
ALWAYS_INLINE void add_chunk(const Decoder& decode, const uint8_t* quad, const float* x, float32x4_t first,
                             float32x4_t second, float32x4_t* total) {
  if constexpr (HALVES) {
    add_groups<0, GROUPS / 2, M, CAREFUL>(decode, quad, x, first, total);
    add_groups<GROUPS / 2, GROUPS / 2, M, CAREFUL>(decode, quad, x, second, total);
  } else {
    add_groups<0, GROUPS, M, CAREFUL>(decode, quad, x, first, total);
  }
}

// totals[M][16] of one tile and x [k][M]. HALVES: blocks of 16, two to a chunk.
template <class Decoder, int M, bool HALVES>
void stream_tile(const Decoder& decoder, const Format& format, const uint8_t* codes, const uint8_t* scale_bytes,
                 const float* x, int64_t k, float* totals) {
  const Decoder decode = decoder;  // its tables stay in registers
  float32x4_t total[QUADS][M] = {};
  ChunkScales scales(format, scale_bytes, k);
  for (int64_t c = 0; c < cpu_tiles::chunks(k); ++c, codes += 64 * Decoder::BITS, x += cpu_tiles::CHUNK * M) {
    prefetch<Decoder::BITS>(codes);
    scales.advance();
    for (int q = 0; q < QUADS; ++q) {
      const uint8_t* quad = codes + 16 * q;
      const auto first = (float32x4_t)scales.first.part[q], second = (float32x4_t)scales.second.part[q];
      with_care<GROUPS, 1>(decode, quad, [&](auto careful) INLINED {
        add_chunk<M, HALVES, decltype(careful)::value>(decode, quad, x, first, second, total[q]);
      });
    }
  }
  for (int q = 0; q < QUADS; ++q)
    for (int m = 0; m < M; ++m) vst1q_f32(totals + m * cpu_tiles::ROWS + q * QUAD, total[q][m] * Decoder::GAIN);
}

}  // namespace blockscale::ISA_NAMESPACE
