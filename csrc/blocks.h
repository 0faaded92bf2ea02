// The product of many rows: a slab of weights is decoded once to float32, stays in the first-level
// cache, and meets every row of x before the next. Sums run along k in a fixed order.
#pragma once
#include "kernels.h"
#include "passes.h"
#include "slab.h"

namespace blockscale::ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int BLOCK_TILES = 2;  // side by side: each number of x is loaded once for both
#else
constexpr int BLOCK_TILES = 1;
#endif
constexpr int BLOCK_COLUMNS = BLOCK_TILES * cpu_tiles::ROWS;
constexpr int SLAB_CHUNKS = 4;

int64_t block_tiles() { return BLOCK_TILES; }

// slab[k][BLOCK_COLUMNS]; columns past n are zero.
template <class Decoder>
void decode_block(const Decoder decode, const Matmul& call, int which, int64_t group, int64_t tile,
                  int64_t first, int64_t chunks, float* slab) {
  for (int t = 0; t < BLOCK_TILES; ++t) {
    float* to = slab + t * cpu_tiles::ROWS;
    if (tile + t >= cpu_tiles::tiles(call.n)) {
      for (int64_t k = 0; k < chunks * cpu_tiles::CHUNK; ++k) store(to + k * BLOCK_COLUMNS, f32x16{});
      continue;
    }
    for_each_pair(
        decode, TileOf(call, group, tile + t), which, first, chunks,
        [&](int64_t chunk, int pair, f32x16 even, f32x16 odd) {
          float* at = to + (chunk * cpu_tiles::CHUNK + 2 * pair) * BLOCK_COLUMNS;
          store(at, even);
          store(at + BLOCK_COLUMNS, odd);
        },
        [](f32x16) {});
  }
}

// sums[M][BLOCK_COLUMNS] += x [depth][M] @ slab.
template <int M>
void multiply_block(const float* x, const float* slab, int64_t depth, float* sums) {
  f32x16 sum[M][BLOCK_TILES];
  for (int m = 0; m < M; ++m)
    for (int t = 0; t < BLOCK_TILES; ++t)
      sum[m][t] = load<f32x16>(sums + m * BLOCK_COLUMNS + t * cpu_tiles::ROWS);
  for (int64_t k = 0; k < depth; ++k, slab += BLOCK_COLUMNS, x += M) {
    f32x16 weight[BLOCK_TILES];
    for (int t = 0; t < BLOCK_TILES; ++t) weight[t] = load<f32x16>(slab + t * cpu_tiles::ROWS);
    for (int m = 0; m < M; ++m) {
      const f32x16 value = splat(x[m]);
      for (int t = 0; t < BLOCK_TILES; ++t) sum[m][t] += value * weight[t];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int t = 0; t < BLOCK_TILES; ++t)
      store(sums + m * BLOCK_COLUMNS + t * cpu_tiles::ROWS, sum[m][t]);
}

// How much scratch multiply_rows needs for the largest group, in floats.
int64_t block_scratch(const Matmul& call, int64_t rows) {
  return slab_chunks(call.format, SLAB_CHUNKS) * cpu_tiles::CHUNK * BLOCK_COLUMNS +
         2 * padded_rows(rows, MOST_ROWS) * BLOCK_COLUMNS;
}

// BLOCK_TILES tiles of one group, for every row of it. x: the group's rows, arranged as in passes.h.
void multiply_rows(const Matmul& call, const float* x, int64_t group, int64_t tile,
                   float* scratch) {
  const int64_t chunks = cpu_tiles::chunks(call.k), depth = slab_chunks(call.format, SLAB_CHUNKS);
  const int64_t begin = call.row_begin[group], rows = call.row_begin[group + 1] - begin;
  const int64_t padded = padded_rows(rows, MOST_ROWS);
  const int weights = call.activation == NONE ? 1 : 2;
  float* const slab = scratch;
  float* const sums = scratch + depth * cpu_tiles::CHUNK * BLOCK_COLUMNS;
  std::memset(sums, 0, size_t(weights * padded * BLOCK_COLUMNS) * sizeof(float));
  for (int w = 0; w < weights; ++w)
    with_decoder(TileOf(call, group, tile).format(w), [&](const auto& decode) {
      for (int64_t first = 0; first < chunks; first += depth) {
        const int64_t count = chunks - first < depth ? chunks - first : depth;
        decode_block(decode, call, w, group, tile, first, count, slab);
        for (int64_t row = 0; row < rows;) {
          const int taken = pass_rows(rows - row, MOST_ROWS);
          with_rows(taken, [&](auto m) {
            const float* at = x + (row * chunks + first * taken) * cpu_tiles::CHUNK;
            multiply_block<decltype(m)::value>(at, slab, count * cpu_tiles::CHUNK,
                                               sums + (w * padded + row) * BLOCK_COLUMNS);
          });
          row += taken;
        }
      }
    });
  for (int t = 0; t < BLOCK_TILES && tile + t < cpu_tiles::tiles(call.n); ++t) {
    const float* gate = sums + t * cpu_tiles::ROWS;
    TileOf(call, group, tile + t)
        .finish(begin, begin + rows, rows, gate,
                weights == 2 ? gate + padded * BLOCK_COLUMNS : nullptr, BLOCK_COLUMNS);
  }
}

}  // namespace blockscale::ISA_NAMESPACE
