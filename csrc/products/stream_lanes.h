// The streaming product of one tile, sixteen rows of the weight in sixteen lanes.
#pragma once
#include "products/decode.h"

namespace blockscale::ISA_NAMESPACE {

template <int M>
struct Sums {
  // Additions wait for each other: few rows take even and odd columns apart.
  static constexpr int CHAINS = M <= 2 ? 2 : 1;
  f32x16 partial[CHAINS][M], total[M];

  ALWAYS_INLINE void add(f32x16 even, f32x16 odd, const float* x) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      partial[0][m] += even * x[m];
      partial[CHAINS - 1][m] += odd * x[M + m];
    }
  }

  // The scale of a block is applied to its sum, not to its weights.
  ALWAYS_INLINE void apply(f32x16 scale) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if (CHAINS == 2) partial[0][m] += partial[1][m];
      total[m] += partial[0][m] * scale;
#pragma GCC unroll 8
      for (int c = 0; c < CHAINS; ++c) partial[c][m] = f32x16{};
    }
  }
};

// totals[M][16] of one tile and x [k][M]. HALVES: blocks of 16, two to a chunk.
template <class Decoder, int M, bool HALVES>
void stream_tile(const Decoder& decode, const Format& format, const uint8_t* codes,
                 const uint8_t* scale_bytes, const float* x, int64_t k, float* totals) {
  constexpr int BITS = Decoder::BITS, HALF = BITS / 2;
  Sums<M> sums{};
  ChunkScales scales(format, scale_bytes, k);
  for (int64_t c = 0; c < cpu_tiles::chunks(k); ++c, codes += 64 * BITS, x += cpu_tiles::CHUNK * M) {
    const Chunk<BITS> chunk(codes);
    prefetch<BITS>(codes);
    scales.advance();
    const auto add = [&](int pair, f32x16 even, f32x16 odd) {
      sums.add(even, odd, x + 2 * pair * M);
    };
    if constexpr (HALVES) {
      chunk.in_words(decode, 0, HALF, add);
      sums.apply(scales.first);
      chunk.in_words(decode, HALF, BITS, add);
      sums.apply(scales.second);
    } else {
      chunk.for_each(decode, add);
      sums.apply(scales.first);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) store(totals + m * cpu_tiles::ROWS, sums.total[m]);
}

}  // namespace blockscale::ISA_NAMESPACE
