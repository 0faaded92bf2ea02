// The streaming product: every weight is read once, decoded in registers, and multiplied by a few
// rows of x in float32. For the rows of a decoding step this runs at the speed of memory.
//
// Sixteen rows of the weight are sixteen lanes, so a sum runs along k inside its lane: in a fixed
// order, with no reduction, and whatever thread has the tile.
#pragma once
#include "products/decode.h"
#include "products/row_tiles.h"
#include "products/tile.h"

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

template <int M>
void stream_weight(const TileOf& at, int which, const float* x, float* totals) {
  const Format format = at.format(which);
  with_decoder(format, [&](const auto& decode) {
    using Decoder = std::decay_t<decltype(decode)>;
    // Only of these codes do the two halves of a chunk lie in words of their own.
    if constexpr (Decoder::BITS == 2 || Decoder::BITS == 4 || Decoder::BITS == 8)
      if (format.block == 16)
        return stream_tile<Decoder, M, true>(decode, format, at.codes(which), at.scales(which), x,
                                             at.call.k, totals);
    stream_tile<Decoder, M, false>(decode, format, at.codes(which), at.scales(which), x, at.call.k,
                                   totals);
  });
}

// One tile of one group, for every row of it. x: the group's rows, arranged as in row_tiles.h.
void stream(const Matmul& call, const float* x, int64_t group, int64_t tile) {
  const TileOf at(call, group, tile);
  const bool gated = call.activation != NONE;
  const int64_t depth = cpu_tiles::chunks(call.k) * cpu_tiles::CHUNK, end = call.row_begin[group + 1];
  float totals[2][MOST_ROWS * cpu_tiles::ROWS];
  for (int64_t row = call.row_begin[group]; row < end;) {
    const int rows = tile_rows(end - row, MOST_ROWS);
    with_rows(rows, [&](auto m) {
      for (int w = 0; w < 1 + gated; ++w) stream_weight<decltype(m)::value>(at, w, x, totals[w]);
    });
    at.finish(row, end, rows, totals[0], gated ? totals[1] : nullptr);
    row += rows;
    x += rows * depth;
  }
}

}  // namespace blockscale::ISA_NAMESPACE
