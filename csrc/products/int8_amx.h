// Many rows of int8 x: AMX multiplies the bytes of sixteen rows at once. The words of a weight, looked
// up and stored one after the other, are what it wants as its second operand: sixteen columns to a
// row, four k to a lane.
//
// The products of a run are integers; the sums of runs are those of int8.h, in its order and
// to its bits. Some columns of a weight, decoded, meet every row of x before the next.
#pragma once
#include <immintrin.h>

#include "isa/byte_table.h"
#include "isa/in_memory.h"
#include "products/decode.h"
#include "products/int8_runs.h"
#include "products/kernels.h"
#include "products/row_tiles.h"
#include "products/tile.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int STAGE_COLUMNS = 512;
constexpr int TILE_SUMS = AMX_TILE_M * cpu_tiles::ROWS;  // integers of a run

// Tiles 0 and 1 are sums, 2 and 4 rows of x, 3 and 5 weights.
struct alignas(64) Int8TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64};
  uint8_t rows[16] = {};

  Int8TileConfig(int64_t x_rows, int run) {
    row_bytes[2] = row_bytes[4] = uint16_t(run);
    row_bytes[3] = row_bytes[5] = 64;
    rows[0] = rows[1] = rows[2] = rows[4] = uint8_t(x_rows < AMX_TILE_M ? x_rows : AMX_TILE_M);
    rows[3] = rows[5] = uint8_t(run / 4);
  }
};

// A thread's memory.
struct Int8Stage {
  alignas(64) uint8_t weights[STAGE_COLUMNS / 4][64];
  alignas(64) float scales[STAGE_COLUMNS / 16][cpu_tiles::ROWS];  // of every run
  alignas(64) int32_t sums[2][2][TILE_SUMS];                 // of two pairs of runs
};

int64_t int8_scratch(int64_t rows) {
  const int64_t padded = (rows + AMX_TILE_M - 1) / AMX_TILE_M * AMX_TILE_M;
  return int64_t(sizeof(Int8Stage)) + 2 * padded * cpu_tiles::ROWS * int64_t(sizeof(float));
}

// The runs of a weight, one after the other: bytes to multiply, and a scale.
template <int BITS, int RUN>
class RunReader {
 public:
  RunReader(const TileOf& at, int which, const IntegerTable& integers)
      : format_(at.call.format),
        codes_(at.codes(which)),
        scales_(at.scales(which)),
        table_(integers.integers) {}

  ALWAYS_INLINE void read(uint8_t* weights, float* scale) {
    if (left_-- == 0) {
      left_ = format_.block / RUN - 1;
      scale_ = scale_vector(format_, scales_);
      prefetch_scales(scales_);
      scales_ += cpu_tiles::ROWS * format_.scale_bytes;
    }
    store(scale, scale_);
    for (int w = 0; w < BITS * RUN / cpu_tiles::CHUNK; ++w, codes_ += 64) {
      const u32x16 word = load<u32x16>(codes_);
      prefetch<1>(codes_);
      for (int step = 0; step < 8 / BITS; ++step, weights += 64)
        store(weights, table_.look_up<BITS>(word, step));
    }
  }

 private:
  const Format& format_;
  const uint8_t *codes_, *scales_;
  ByteTable table_;
  int64_t left_ = 0;
  f32x16 scale_;
};

// The integer sums of two runs; of one where there is no second. x: [run][row][RUN].
template <int RUN>
ALWAYS_INLINE void multiply_pair(const uint8_t* x, const uint8_t* weights, bool second,
                                 int32_t (*sums)[TILE_SUMS]) {
  _tile_zero(0);
  _tile_loadd(2, x, RUN);
  _tile_loadd(3, weights, 64);
  _tile_dpbssd(0, 2, 3);
  _tile_stored(0, sums[0], 64);
  if (!second) return;
  _tile_zero(1);
  _tile_loadd(4, x + AMX_TILE_M * RUN, RUN);
  _tile_loadd(5, weights + RUN * cpu_tiles::ROWS, 64);
  _tile_dpbssd(1, 4, 5);
  _tile_stored(1, sums[1], 64);
}

// totals[16][16] += `count` runs of a stage times a row tile. A pair of runs is added while the
// next is multiplied, when its sums have reached the cache.
template <int RUN>
void multiply_stage(Int8Stage& stage, const uint8_t* x, const float* x_scales, int64_t count,
                   float* totals) {
  f32x16 total[AMX_TILE_M];
#pragma GCC unroll 16
  for (int m = 0; m < AMX_TILE_M; ++m) total[m] = load<f32x16>(totals + m * cpu_tiles::ROWS);
  const auto multiply = [&](int64_t s) {
    multiply_pair<RUN>(x + s * AMX_TILE_M * RUN, stage.weights[s * RUN / 4], s + 1 < count,
                           stage.sums[s / 2 % 2]);
  };
  multiply(0);
  for (int64_t s = 0; s < count; ++s) {
    if (s % 2 == 0 && s + 2 < count) multiply(s + 2);
    const f32x16 scale = load<f32x16>(stage.scales[s]);
    const int32_t* sums = stage.sums[s / 2 % 2][s % 2];
#pragma GCC unroll 16
    for (int m = 0; m < AMX_TILE_M; ++m)
      total[m] += to_floats(load<i32x16>(sums + m * cpu_tiles::ROWS)) *
                  (scale * x_scales[s * AMX_TILE_M + m]);
  }
#pragma GCC unroll 16
  for (int m = 0; m < AMX_TILE_M; ++m) store(totals + m * cpu_tiles::ROWS, total[m]);
}

template <int BITS, int RUN>
void int8_amx_of(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                   int64_t tile, uint8_t* scratch) {
  const TileOf at(call, group, tile);
  const int64_t begin = call.row_begin[group], rows = call.row_begin[group + 1] - begin;
  const int64_t row_tiles = (rows + AMX_TILE_M - 1) / AMX_TILE_M, runs = call.k / RUN;
  const int weights = call.activation == NONE ? 1 : 2;
  auto& stage = *reinterpret_cast<Int8Stage*>(scratch);
  auto* const totals = reinterpret_cast<float*>(scratch + sizeof(Int8Stage));
  std::memset(stage.sums, 0, sizeof stage.sums);  // of which tiles of few rows leave some alone
  std::memset(totals, 0, size_t(weights * row_tiles * TILE_SUMS) * sizeof(float));
  const Int8TileConfig config(rows, RUN);
  in_memory(&config);
  _tile_loadconfig(&config);
  for (int w = 0; w < weights; ++w) {
    float* const sums = totals + w * row_tiles * TILE_SUMS;
    RunReader<BITS, RUN> reader(at, w, tables[w]);
    constexpr int64_t DEPTH = STAGE_COLUMNS / RUN;
    for (int64_t first = 0; first < runs; first += DEPTH) {
      const int64_t count = runs - first < DEPTH ? runs - first : DEPTH;
      for (int64_t s = 0; s < count; ++s)
        reader.read(stage.weights[s * RUN / 4], stage.scales[s]);
      in_memory(&stage);
      for (int64_t p = 0; p < row_tiles; ++p) {
        const Int8Rows row_tile = rows_from(x, p * AMX_TILE_M, call.k, RUN);
        multiply_stage<RUN>(
            stage, reinterpret_cast<const uint8_t*>(row_tile.words) + first * AMX_TILE_M * RUN,
            row_tile.scales + first * AMX_TILE_M, count, sums + p * TILE_SUMS);
      }
    }
    for (int64_t i = 0; i < row_tiles * TILE_SUMS; i += cpu_tiles::ROWS)
      store(sums + i, load<f32x16>(sums + i) * tables[w].unit);
  }
  _tile_release();
  at.finish(begin, begin + rows, rows, totals, weights == 2 ? totals + row_tiles * TILE_SUMS : nullptr);
}

// x: the group's rows, in row tiles of 16. tables: of gate and up.
void int8_amx(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                int64_t tile, uint8_t* scratch) {
  with_runs(call.format, [&](auto bits, auto run) {
    int8_amx_of<decltype(bits)::value, decltype(run)::value>(call, tables, x, group, tile,
                                                                   scratch);
  });
}

}  // namespace blockscale::ISA_NAMESPACE
