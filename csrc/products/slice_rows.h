// Rows of numbers as slices of eight bits, for slices_neon.h: the Ozaki scheme, of one operand.
//
// A chunk of a row, 32 columns, shares a unit, a power of two. A number is an integer of 24 bits times the unit, and a
// rest of at most half a unit; the integer is three slices: s0 2^16 + s1 2^8 + s2. The rest of a number is left out where
// it is below k / 2 roundings of that number (k / 2 * 2^-24): sums in float32 may lose k of them. Where some rest of a
// chunk is larger, or a number is not finite, the rests of that chunk are kept, as float32, which holds them exactly.
#pragma once
#include <cmath>
#include <cstdlib>

#include "convert.h"
#include "products/int8_table.h"
#include "products/kernels.h"
#include "products/x_rows.h"

namespace blockscale {

// Whether the weights of a product are integers that slices can be multiplied by, and the CPU multiplies bytes.
inline bool takes_slices(const Matmul& call) {
  const Format& format = call.format;
  if (call.isa < DOTPROD || format.decoder != TABLE || format.bits != 4) return false;
  if (format.block != 16 && format.block != 32) return false;
  for (const IntegerTable& table : integer_tables(call)) {
    if (table.unit != SLICED_UNIT) return false;
    for (int integer : table.integers)
      if (std::abs(integer) > MOST_SLICED) return false;
  }
  return true;
}

constexpr float LARGEST_IN_SLICES = 127 * 65536 + 127 * 256 + 127;

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

  // Words of one row, `pitch` apart. Whether the rests have to be kept.
  bool slice(const float* x, float negligible, uint32_t* words, int pitch, float* unit, float* rest) const {
    float largest = 0;
    for (int i = 0; i < CHUNK; ++i) {
      const float size = std::fabs(x[i]);
      largest = std::max(largest, size <= 0x1.fffffep127f ? size : 0.0f);  // of those that are finite
    }
    // Half the unit is a normal number, and so is what one is divided by.
    int exponent = -102;
    if (largest >= 0x1p-102f) std::frexp(largest, &exponent);
    if (std::ldexp(largest, 23 - exponent) > LARGEST_IN_SLICES) ++exponent;
    const float per_unit = std::ldexp(1.0f, 23 - exponent), one = std::ldexp(1.0f, exponent - 23);
    int32_t integers[CHUNK];
    bool keep = false;
    for (int i = 0; i < CHUNK; ++i) {
      const bool finite = std::fabs(x[i]) <= 0x1.fffffep127f;
      const float scaled = finite ? x[i] * per_unit : 0.0f, nearest = std::nearbyint(scaled);
      integers[i] = int32_t(nearest);
      rest[i] = finite ? (scaled - nearest) * one : x[i];
      keep |= !finite | (std::fabs(scaled - nearest) > negligible * std::fabs(scaled));
    }
    for (int group = 0; group < cpu_tiles::GROUPS; ++group, words += pitch) {
      int8_t bytes[SLICES][4];
      for (int at = 0; at < 4; ++at) {
        const int32_t integer = integers[order_[4 * group + at]];
        const int32_t low = int8_t(integer), rounded = (integer - low) / 256, middle = int8_t(rounded);
        bytes[0][at] = int8_t((rounded - middle) / 256);
        bytes[1][at] = int8_t(middle);
        bytes[2][at] = int8_t(low);
      }
      std::memcpy(words, bytes, sizeof bytes);
    }
    *unit = one * SLICED_UNIT;
    return keep;
  }

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
