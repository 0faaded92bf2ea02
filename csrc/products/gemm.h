// The product of many rows: a stage of weights is decoded once to float32, stays in the first-level
// cache, and meets every row of x before the next. Sums run along k in a fixed order.
#pragma once
#include "products/decoders.h"
#include "products/kernels.h"
#include "products/row_tiles.h"
#include "products/stage.h"

#if defined(NEON_KERNELS)
#include "products/stage_neon.h"
#endif

namespace blockscale::ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int GEMM_TILES = 2;  // side by side: each number of x is loaded once for both
#else
constexpr int GEMM_TILES = 1;
#endif
constexpr int GEMM_COLUMNS = GEMM_TILES * cpu_tiles::ROWS;
constexpr int STAGE_CHUNKS = 4;

int64_t gemm_tiles() { return GEMM_TILES; }

// stage[k][GEMM_COLUMNS]; columns past n are zero.
template <class Decoder>
void decode_stage(const Decoder decode, const Matmul& call, int which, int64_t group, int64_t tile,
                  int64_t first, int64_t chunks, float* stage) {
  for (int t = 0; t < GEMM_TILES; ++t) {
    float* to = stage + t * cpu_tiles::ROWS;
    if (tile + t >= cpu_tiles::tiles(call.n)) {
      for (int64_t k = 0; k < chunks * cpu_tiles::CHUNK; ++k) store(to + k * GEMM_COLUMNS, f32x16{});
      continue;
    }
    decode_columns<GEMM_COLUMNS>(decode, TileOf(call, group, tile + t), which, first, chunks, to);
  }
}

// sums[M][GEMM_COLUMNS] += x [depth][M] @ stage.
template <int M>
void multiply_stage(const float* x, const float* stage, int64_t depth, float* sums) {
#if defined(NEON_KERNELS)
  if constexpr (M == 4) return multiply_four_rows(x, stage, depth, sums);
#endif
  f32x16 sum[M][GEMM_TILES];
  for (int m = 0; m < M; ++m)
    for (int t = 0; t < GEMM_TILES; ++t)
      sum[m][t] = load<f32x16>(sums + m * GEMM_COLUMNS + t * cpu_tiles::ROWS);
  for (int64_t k = 0; k < depth; ++k, stage += GEMM_COLUMNS, x += M) {
    f32x16 weight[GEMM_TILES];
    for (int t = 0; t < GEMM_TILES; ++t) weight[t] = load<f32x16>(stage + t * cpu_tiles::ROWS);
    for (int m = 0; m < M; ++m) {
      const f32x16 value = splat(x[m]);
      for (int t = 0; t < GEMM_TILES; ++t) sum[m][t] += value * weight[t];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int t = 0; t < GEMM_TILES; ++t)
      store(sums + m * GEMM_COLUMNS + t * cpu_tiles::ROWS, sum[m][t]);
}

// How much scratch gemm needs for the largest group, in floats.
int64_t gemm_scratch(const Matmul& call, int64_t rows) {
  return stage_chunks(call.format, STAGE_CHUNKS) * cpu_tiles::CHUNK * GEMM_COLUMNS +
         2 * padded_rows(rows, MOST_ROWS) * GEMM_COLUMNS;
}

// GEMM_TILES tiles of one group, for every row of it. x: the group's rows, arranged as in row_tiles.h.
void gemm(const Matmul& call, const float* x, int64_t group, int64_t tile,
                   float* scratch) {
  const int64_t chunks = cpu_tiles::chunks(call.k), depth = stage_chunks(call.format, STAGE_CHUNKS);
  const int64_t begin = call.row_begin[group], rows = call.row_begin[group + 1] - begin;
  const int64_t padded = padded_rows(rows, MOST_ROWS);
  const int weights = call.activation == NONE ? 1 : 2;
  float* const stage = scratch;
  float* const sums = scratch + depth * cpu_tiles::CHUNK * GEMM_COLUMNS;
  std::memset(sums, 0, size_t(weights * padded * GEMM_COLUMNS) * sizeof(float));
  for (int w = 0; w < weights; ++w)
    with_product_decoder(TileOf(call, group, tile).format(w), [&](const auto& decode) {
      for (int64_t first = 0; first < chunks; first += depth) {
        const int64_t count = chunks - first < depth ? chunks - first : depth;
        decode_stage(decode, call, w, group, tile, first, count, stage);
        for (int64_t row = 0; row < rows;) {
          const int taken = tile_rows(rows - row, MOST_ROWS);
          with_rows(taken, [&](auto m) {
            const float* at = x + (row * chunks + first * taken) * cpu_tiles::CHUNK;
            multiply_stage<decltype(m)::value>(at, stage, count * cpu_tiles::CHUNK,
                                               sums + (w * padded + row) * GEMM_COLUMNS);
          });
          row += taken;
        }
      }
#if defined(NEON_KERNELS)
      apply_gain<std::decay_t<decltype(decode)>>(sums + w * padded * GEMM_COLUMNS, padded * GEMM_COLUMNS);
#endif
    });
  for (int t = 0; t < GEMM_TILES && tile + t < cpu_tiles::tiles(call.n); ++t) {
    const float* gate = sums + t * cpu_tiles::ROWS;
    TileOf(call, group, tile + t)
        .finish(begin, begin + rows, rows, gate,
                weights == 2 ? gate + padded * GEMM_COLUMNS : nullptr, GEMM_COLUMNS);
  }
}

}  // namespace blockscale::ISA_NAMESPACE
