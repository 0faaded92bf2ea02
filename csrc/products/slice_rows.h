// Rows of numbers as slices of eight bits, for slices_neon.h: the Ozaki scheme.
//
// A chunk of a row, 32 columns, shares a unit, a power of two. A number is an integer of 24 bits times the unit, and a
// rest of at most half a unit; the integer is three slices: s0 2^16 + s1 2^8 + s2. The rest of a number is left out where
// it is below k / 2 roundings of that number (k / 2 * 2^-24): sums in float32 may lose k of them. Where some rest of a
// chunk is larger, or a number is not finite, the rests of that chunk are kept, as float32, which holds them exactly.
#pragma once
#include <cmath>

#include "convert.h"
#include "products/kernels.h"
#include "products/slice_table.h"
#include "products/x_rows.h"

namespace blockscale {

constexpr float LARGEST_IN_SLICES = largest_of_slices(SLICES);
constexpr int LEAST_SLICED_EXPONENT = -63;  // of the largest number of a chunk: its unit is 2^-86 or more

class ArrangedSlices {
 public:
  explicit ArrangedSlices(const Matmul& call)
      : chunks_(cpu_tiles::chunks(call.k)),
        row_tiles_(call, SLICE_ROWS),
        words_(make_array<uint32_t>(row_tiles_.rows * chunks_ * cpu_tiles::GROUPS * SLICES)),
        units_(make_array<float>(row_tiles_.rows * chunks_)),
        rests_(row_tiles_.all.size()),
        rows_(row_tiles_.all.size()) {
    for (int i = 0; i < cpu_tiles::CHUNK; ++i) order_[i] = cpu_tiles::column_of(call.format.bits, i / 4, i % 4);
    parallel_for(int64_t(row_tiles_.all.size()), call.threads,
                 [&](int64_t i) { arrange(call, row_tiles_.all[size_t(i)], rests_[size_t(i)]); });
    size_t tile = 0;
    for (int64_t g = 0; g < call.groups; ++g) {
      first_.push_back(tile);
      for (; tile < rows_.size() && row_tiles_.all[tile].begin < call.row_begin[g + 1]; ++tile) {
        const int64_t before = row_tiles_.all[tile].before * chunks_;
        const Vector<Rest>& rests = rests_[tile].all;
        rows_[tile] = {words_.get() + before * cpu_tiles::GROUPS * SLICES, units_.get() + before, rests.data(),
                       int64_t(rests.size())};
      }
    }
  }

  // Its row tiles.
  const SliceRows* of(int64_t group) const { return rows_.data() + first_[size_t(group)]; }

 private:
  static constexpr int CHUNK = cpu_tiles::CHUNK;

  struct Rests {
    Vector<Rest> all;
    Vector<Array<float>> numbers;
  };

  void arrange(const Matmul& call, const RowTile& row_tile, Rests& rests) {
    const int rows = row_tile.rows;
    const float negligible = float(call.k) / 2 * 0x1p-24f;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const int64_t first = chunk * CHUNK, count = std::min<int64_t>(call.k - first, CHUNK);
      float* of_chunk = nullptr;
      for (int m = 0; m < rows; ++m) {
        float x[CHUNK] = {}, rest[CHUNK];
        if (row_tile.begin + m < row_tile.end) read(call, (row_tile.begin + m) * call.x_stride + first, count, x);
        const int64_t at = (row_tile.before * chunks_ + chunk * rows) * cpu_tiles::GROUPS + m;
        const bool keep = slice(x, negligible, words_.get() + at * SLICES, rows * SLICES,
                                units_.get() + row_tile.before * chunks_ + chunk * rows + m, rest);
        if (!keep) continue;
        if (!of_chunk) {
          rests.numbers.push_back(make_array<float>(CHUNK * rows));
          of_chunk = rests.numbers.back().get();
          std::memset(of_chunk, 0, size_t(CHUNK * rows) * sizeof(float));
          rests.all.push_back({chunk, of_chunk});
        }
        for (int i = 0; i < CHUNK; ++i) of_chunk[i * rows + m] = rest[i];
      }
    }
  }

  static void read(const Matmul& call, int64_t at, int64_t count, float* to) {
    const auto* halves = static_cast<const uint16_t*>(call.x) + at;
    if (call.x_dtype == FLOAT32) std::memcpy(to, static_cast<const float*>(call.x) + at, size_t(count) * sizeof(float));
    else if (call.x_dtype == BFLOAT16)
      for (int64_t i = 0; i < count; ++i) to[i] = from_bfloat16(halves[i]);
    else
      for (int64_t i = 0; i < count; ++i) to[i] = from_float16(halves[i]);
  }

  // Words of one row, `pitch` apart. Whether the rests have to be kept. What is asked of a number is asked of its bits,
  // which compilers know how to do for several at a time.
  bool slice(const float* x, float negligible, uint32_t* words, int pitch, float* unit, float* rest) const {
    constexpr uint32_t MAGNITUDE = 0x7fffffffu, INFINITE = 0x7f800000u;
    float finite[CHUNK];
    uint32_t largest = 0, keep = 0;
    for (int i = 0; i < CHUNK; ++i) {
      const uint32_t bits = float_to_bits(x[i]), special = (bits & MAGNITUDE) >= INFINITE, kept = bits & (special - 1);
      finite[i] = bits_to_float(kept);
      largest = std::max(largest, kept & MAGNITUDE);
      keep |= special;
    }
    int exponent = std::max(int(largest >> 23) - 126, LEAST_SLICED_EXPONENT);  // numbers are below 2 to its power
    if (bits_to_float(largest) * power_of_two(23 - exponent) > LARGEST_IN_SLICES) ++exponent;
    const float per_unit = power_of_two(23 - exponent), one = power_of_two(exponent - 23);
    int32_t integers[CHUNK];
    for (int i = 0; i < CHUNK; ++i) {
      const float scaled = finite[i] * per_unit, nearest = std::nearbyint(scaled), left = scaled - nearest;
      integers[i] = int32_t(nearest);
      rest[i] = left * one + (x[i] - finite[i]);
      keep |= float_to_bits(negligible * std::fabs(scaled) - std::fabs(left)) >> 31;  // its sign
    }
    int32_t ordered[CHUNK];
    for (int i = 0; i < CHUNK; ++i) ordered[i] = integers[order_[i]];
    int8_t slices[SLICES][CHUNK];
    for (int i = 0; i < CHUNK; ++i) {
      const int32_t rounded = ordered[i] + 128;
      slices[0][i] = int8_t(((rounded >> 8) + 128) >> 8);
      slices[1][i] = int8_t(rounded >> 8);
      slices[2][i] = int8_t(ordered[i]);
    }
    for (int group = 0; group < cpu_tiles::GROUPS; ++group, words += pitch)
      for (int s = 0; s < SLICES; ++s) std::memcpy(words + s, slices[s] + 4 * group, 4);
    *unit = one;
    return keep;
  }

  static float power_of_two(int exponent) { return bits_to_float(uint32_t(exponent + 127) << 23); }

  int64_t chunks_;
  RowTiles row_tiles_;
  Array<uint32_t> words_;
  Array<float> units_;
  Vector<Rests> rests_;  // of each row tile
  Vector<SliceRows> rows_;
  Vector<size_t> first_;  // of each group
  int order_[CHUNK];
};

}  // namespace blockscale
