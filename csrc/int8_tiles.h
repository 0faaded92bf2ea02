// Many rows of int8 x: AMX multiplies the bytes of sixteen rows at once. The words of a weight, looked
// up and stored one after the other, are what it wants as its second operand: sixteen columns to a
// row, four k to a lane.
//
// The products of a segment are integers; the sums of segments are those of int8.h, in its order and
// to its bits. Some columns of a weight, decoded, meet every row of x before the next.
#pragma once
#include <immintrin.h>

#include "byte_table.h"
#include "decode.h"
#include "kernels.h"
#include "passes.h"
#include "segments.h"
#include "tile.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int SLAB_COLUMNS = 512;
constexpr int TILE_SUMS = TILE_PASS * cpu_tiles::ROWS;  // integers of a segment

// Tiles 0 and 1 are sums, 2 and 4 rows of x, 3 and 5 weights.
struct alignas(64) Int8TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64};
  uint8_t rows[16] = {};

  Int8TileConfig(int64_t x_rows, int segment) {
    row_bytes[2] = row_bytes[4] = uint16_t(segment);
    row_bytes[3] = row_bytes[5] = 64;
    rows[0] = rows[1] = rows[2] = rows[4] = uint8_t(x_rows < TILE_PASS ? x_rows : TILE_PASS);
    rows[3] = rows[5] = uint8_t(segment / 4);
  }
};

// Tile instructions do not tell the compiler what they read: that is stored before.
ALWAYS_INLINE void in_memory(const void* read) { asm volatile("" : : "r"(read) : "memory"); }

// A thread's memory.
struct Int8Slab {
  alignas(64) uint8_t weights[SLAB_COLUMNS / 4][64];
  alignas(64) float scales[SLAB_COLUMNS / 16][cpu_tiles::ROWS];  // of every segment
  alignas(64) int32_t sums[2][2][TILE_SUMS];                 // of two pairs of segments
};

int64_t int8_scratch(int64_t rows) {
  const int64_t padded = (rows + TILE_PASS - 1) / TILE_PASS * TILE_PASS;
  return int64_t(sizeof(Int8Slab)) + 2 * padded * cpu_tiles::ROWS * int64_t(sizeof(float));
}

// The segments of a weight, one after the other: bytes to multiply, and a scale.
template <int BITS, int SEGMENT>
class SegmentReader {
 public:
  SegmentReader(const TileOf& at, int which, const IntegerTable& integers)
      : format_(at.call.format),
        codes_(at.codes(which)),
        scales_(at.scales(which)),
        table_(integers.integers) {}

  ALWAYS_INLINE void read(uint8_t* weights, float* scale) {
    if (left_-- == 0) {
      left_ = format_.block / SEGMENT - 1;
      scale_ = scale_vector(format_, scales_);
      prefetch_scales(scales_);
      scales_ += cpu_tiles::ROWS * format_.scale_bytes;
    }
    store(scale, scale_);
    for (int w = 0; w < BITS * SEGMENT / cpu_tiles::CHUNK; ++w, codes_ += 64) {
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

// The integer sums of two segments; of one where there is no second. x: [segment][row][SEGMENT].
template <int SEGMENT>
ALWAYS_INLINE void multiply_pair(const uint8_t* x, const uint8_t* weights, bool second,
                                 int32_t (*sums)[TILE_SUMS]) {
  _tile_zero(0);
  _tile_loadd(2, x, SEGMENT);
  _tile_loadd(3, weights, 64);
  _tile_dpbssd(0, 2, 3);
  _tile_stored(0, sums[0], 64);
  if (!second) return;
  _tile_zero(1);
  _tile_loadd(4, x + TILE_PASS * SEGMENT, SEGMENT);
  _tile_loadd(5, weights + SEGMENT * cpu_tiles::ROWS, 64);
  _tile_dpbssd(1, 4, 5);
  _tile_stored(1, sums[1], 64);
}

// totals[16][16] += `count` segments of a slab times a pass. A pair of segments is added while the
// next is multiplied, when its sums have reached the cache.
template <int SEGMENT>
void multiply_slab(Int8Slab& slab, const uint8_t* x, const float* x_scales, int64_t count,
                   float* totals) {
  f32x16 total[TILE_PASS];
#pragma GCC unroll 16
  for (int m = 0; m < TILE_PASS; ++m) total[m] = load<f32x16>(totals + m * cpu_tiles::ROWS);
  const auto multiply = [&](int64_t s) {
    multiply_pair<SEGMENT>(x + s * TILE_PASS * SEGMENT, slab.weights[s * SEGMENT / 4], s + 1 < count,
                           slab.sums[s / 2 % 2]);
  };
  multiply(0);
  for (int64_t s = 0; s < count; ++s) {
    if (s % 2 == 0 && s + 2 < count) multiply(s + 2);
    const f32x16 scale = load<f32x16>(slab.scales[s]);
    const int32_t* sums = slab.sums[s / 2 % 2][s % 2];
#pragma GCC unroll 16
    for (int m = 0; m < TILE_PASS; ++m)
      total[m] += to_floats(load<i32x16>(sums + m * cpu_tiles::ROWS)) *
                  (scale * x_scales[s * TILE_PASS + m]);
  }
#pragma GCC unroll 16
  for (int m = 0; m < TILE_PASS; ++m) store(totals + m * cpu_tiles::ROWS, total[m]);
}

template <int BITS, int SEGMENT>
void int8_tiles_of(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                   int64_t tile, uint8_t* scratch) {
  const TileOf at(call, group, tile);
  const int64_t begin = call.row_begin[group], rows = call.row_begin[group + 1] - begin;
  const int64_t passes = (rows + TILE_PASS - 1) / TILE_PASS, segments = call.k / SEGMENT;
  const int weights = call.activation == NONE ? 1 : 2;
  auto& slab = *reinterpret_cast<Int8Slab*>(scratch);
  auto* const totals = reinterpret_cast<float*>(scratch + sizeof(Int8Slab));
  std::memset(slab.sums, 0, sizeof slab.sums);  // of which tiles of few rows leave some alone
  std::memset(totals, 0, size_t(weights * passes * TILE_SUMS) * sizeof(float));
  const Int8TileConfig config(rows, SEGMENT);
  in_memory(&config);
  _tile_loadconfig(&config);
  for (int w = 0; w < weights; ++w) {
    float* const sums = totals + w * passes * TILE_SUMS;
    SegmentReader<BITS, SEGMENT> reader(at, w, tables[w]);
    constexpr int64_t DEPTH = SLAB_COLUMNS / SEGMENT;
    for (int64_t first = 0; first < segments; first += DEPTH) {
      const int64_t count = segments - first < DEPTH ? segments - first : DEPTH;
      for (int64_t s = 0; s < count; ++s)
        reader.read(slab.weights[s * SEGMENT / 4], slab.scales[s]);
      in_memory(&slab);
      for (int64_t p = 0; p < passes; ++p) {
        const Int8Rows pass = rows_from(x, p * TILE_PASS, call.k, SEGMENT);
        multiply_slab<SEGMENT>(
            slab, reinterpret_cast<const uint8_t*>(pass.words) + first * TILE_PASS * SEGMENT,
            pass.scales + first * TILE_PASS, count, sums + p * TILE_SUMS);
      }
    }
    for (int64_t i = 0; i < passes * TILE_SUMS; i += cpu_tiles::ROWS)
      store(sums + i, load<f32x16>(sums + i) * tables[w].unit);
  }
  _tile_release();
  at.finish(begin, begin + rows, rows, totals, weights == 2 ? totals + passes * TILE_SUMS : nullptr);
}

// x: the group's rows, in passes of 16. tables: of gate and up.
void int8_tiles(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                int64_t tile, uint8_t* scratch) {
  with_segments(call.format, [&](auto bits, auto segment) {
    int8_tiles_of<decltype(bits)::value, decltype(segment)::value>(call, tables, x, group, tile,
                                                                   scratch);
  });
}

}  // namespace blockscale::ISA_NAMESPACE
