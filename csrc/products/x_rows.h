// Rows of x, arranged as each algorithm reads them.
#pragma once
#include <algorithm>
#include <cstring>

#include "convert.h"
#include "cpu_tiles.h"
#include "exact/exact.h"
#include "products/int8_runs.h"
#include "products/row_tiles.h"
#include "runtime/memory.h"
#include "runtime/threads.h"

namespace blockscale {

inline int64_t rows_of(const Matmul& call, int64_t group) {
  return call.row_begin[group + 1] - call.row_begin[group];
}

// Every row tile of a product.
struct RowTiles {
  Vector<RowTile> all;
  Vector<int64_t> before;  // their rows before each group
  int64_t rows = 0;

  // tiled: groups with more than a row tile go in those of AMX. least: rows that a row tile is padded to.
  RowTiles(const Matmul& call, int most, bool tiled = false, int least = 1) {
    for (int64_t g = 0; g < call.groups; ++g) {
      before.push_back(rows);
      const bool in_tiles = tiled && rows_of(call, g) > most;
      for (int64_t row = call.row_begin[g]; row < call.row_begin[g + 1];) {
        const int taken = in_tiles ? AMX_TILE_M : std::max(tile_rows(call.row_begin[g + 1] - row, most), least);
        all.push_back({row, std::min(row + taken, call.row_begin[g + 1]), rows, taken});
        row += taken;
        rows += taken;
      }
    }
  }
};

// float32 x, arranged as in row_tiles.h.
class ArrangedRows {
 public:
  explicit ArrangedRows(const Matmul& call)
      : depth_(cpu_tiles::chunks(call.k) * cpu_tiles::CHUNK),
        row_tiles_(call, rows_at_once(call.isa)),
        data_(make_array<float>(row_tiles_.rows * depth_)) {
    parallel_for(int64_t(row_tiles_.all.size()), call.threads,
                 [&](int64_t i) { arrange(call, row_tiles_.all[size_t(i)]); });
  }

  const float* of(int64_t group) const {
    return data_.get() + row_tiles_.before[size_t(group)] * depth_;
  }

 private:
  void arrange(const Matmul& call, const RowTile& row_tile) {
    float* to = data_.get() + row_tile.before * depth_;
    for (int m = 0; m < row_tile.rows; ++m) {
      const int64_t row = row_tile.begin + m, k = row < row_tile.end ? call.k : 0;
      const auto* from = static_cast<const uint8_t*>(call.x);
      if (call.x_dtype == FLOAT32)
        spread(reinterpret_cast<const float*>(from) + row * call.x_stride, k, row_tile.rows, to + m,
               [](float x) { return x; });
      else if (call.x_dtype == BFLOAT16)
        spread(reinterpret_cast<const uint16_t*>(from) + row * call.x_stride, k, row_tile.rows, to + m,
               from_bfloat16);
      else
        spread(reinterpret_cast<const uint16_t*>(from) + row * call.x_stride, k, row_tile.rows, to + m,
               from_float16);
      for (int64_t i = k; i < depth_; ++i) to[i * row_tile.rows + m] = 0.0f;
    }
  }

  // Adjacent numbers to every `step`-th place.
  template <class From, class Convert>
  static void spread(const From* from, int64_t count, int step, float* to, Convert convert) {
    if (step == 1)
      for (int64_t i = 0; i < count; ++i) to[i] = convert(from[i]);
    else
      for (int64_t i = 0; i < count; ++i) to[i * step] = convert(from[i]);
  }

  int64_t depth_;
  RowTiles row_tiles_;
  Array<float> data_;
};

// int8 x, arranged as in int8_rows.h.
class ArrangedInt8 {
 public:
  ArrangedInt8(const Matmul& call, int most, bool tiled, int offset)
      : k_(call.k),
        run_(int8_run(call.format.block)),
        row_tiles_(call, most, tiled),
        words_(make_array<uint32_t>(row_tiles_.rows * (k_ / 4))),
        scales_(make_array<float>(row_tiles_.rows * (k_ / run_))),
        starts_(make_array<int32_t>(row_tiles_.rows * (k_ / run_))),
        all_{words_.get(), scales_.get(), starts_.get()} {
    arrange_int8({call, row_tiles_.all.data(), int64_t(row_tiles_.all.size()), offset, all_, call.threads});
  }

  Int8Rows of(int64_t group) const {
    return rows_from(all_, row_tiles_.before[size_t(group)], k_, run_);
  }

 private:
  int64_t k_;
  int run_;
  RowTiles row_tiles_;
  Array<uint32_t> words_;
  Array<float> scales_;
  Array<int32_t> starts_;
  Int8Rows all_;
};

#if defined(__x86_64__)
// bfloat16 x in tiles of 16 rows by 32 columns, zero past the rows and past k; each group's rows
// begin a tile of their own.
struct AmxRows {
  Vector<int64_t> first_tile;
  Array<uint16_t> data;

  explicit AmxRows(const Matmul& call) {
    const int64_t chunks = cpu_tiles::chunks(call.k);
    int64_t tiles = 0;
    for (int64_t g = 0; g < call.groups; ++g) {
      first_tile.push_back(tiles);
      tiles += (call.row_begin[g + 1] - call.row_begin[g] + 15) / 16;
    }
    // A last block of up to 16 rows is read as if it had a second tile.
    data = make_array<uint16_t>((tiles + 1) * chunks * TILE);
    parallel_for(tiles, call.threads, [&](int64_t tile) {
      const auto after = std::upper_bound(first_tile.begin(), first_tile.end(), tile);
      const int64_t g = after - first_tile.begin() - 1;  // the last group that begins here or before
      const int64_t begin = call.row_begin[g] + (tile - first_tile[size_t(g)]) * 16;
      const int64_t rows = std::min<int64_t>(call.row_begin[g + 1] - begin, 16);
      uint16_t* to = data.get() + tile * chunks * TILE;
      std::memset(to, 0, size_t(chunks * TILE) * sizeof(uint16_t));
      for (int64_t r = 0; r < rows; ++r) {
        const auto* from = static_cast<const uint16_t*>(call.x) + (begin + r) * call.x_stride;
        for (int64_t c = 0; c < chunks; ++c)
          std::memcpy(to + c * TILE + r * 32, from + c * 32,
                      size_t(std::min<int64_t>(call.k - c * 32, 32)) * sizeof(uint16_t));
      }
    });
  }

 private:
  static constexpr int64_t TILE = 512;  // numbers
};
#endif

#if defined(__aarch64__)
// bfloat16 x, arranged as in bfmmla.h.
class BfmmlaRows {
 public:
  explicit BfmmlaRows(const Matmul& call)
      : k_(call.k),
        row_tiles_(call, BFMMLA_ROWS, false, BFMMLA_LEAST_ROWS),
        data_(make_array<uint16_t>(row_tiles_.rows * k_)) {
    for (int i = 0; i < HALF; ++i) order_[i] = cpu_tiles::column_of(call.format.bits, i / 4, i % 4);
    parallel_for(int64_t(row_tiles_.all.size()), call.threads,
                 [&](int64_t i) { arrange(call, row_tiles_.all[size_t(i)]); });
  }

  const uint16_t* of(int64_t group) const { return data_.get() + row_tiles_.before[size_t(group)] * k_; }

 private:
  static constexpr int HALF = cpu_tiles::CHUNK / 2;  // of whose columns groups are made, and k of whole ones

  void arrange(const Matmul& call, const RowTile& row_tile) {
    for (int m = 0; m < row_tile.rows; ++m) {
      uint16_t* to = data_.get() + row_tile.before * k_ + 4 * m;
      const bool past = row_tile.begin + m >= row_tile.end;
      const auto* from = static_cast<const uint16_t*>(call.x) + (past ? 0 : (row_tile.begin + m) * call.x_stride);
      for (int64_t column = 0; column < k_; column += HALF)
        for (int i = 0; i < HALF; i += 4, to += 4 * row_tile.rows)
          for (int at = 0; at < 4; ++at) to[at] = past ? 0 : from[column + order_[i + at]];
    }
  }

  int64_t k_;
  RowTiles row_tiles_;
  Array<uint16_t> data_;
  int order_[HALF];
};
#endif

}  // namespace blockscale
