// Activations in int8: dot products of bytes, four to a lane, for codes of 2 or 4 bits.
//
// A byte look-up turns four codes of a lane into four integers; x, rounded to int8 in blocks of 32, is
// arranged to meet them (int8_rows.h). A run is the part of a chunk that shares one scale of the
// weight, 16 or 32 long: sums are exact inside it, and float32 across runs.
#pragma once
#include "products/int8_runs.h"
#include "products/kernels.h"
#include "products/row_tiles.h"
#include "products/tile.h"

#if defined(__aarch64__)
#include "products/int8_neon.h"
#else
#include "products/int8_lanes.h"
#endif

namespace blockscale::ISA_NAMESPACE {

#if defined(__aarch64__)
constexpr int INT8_ROWS = ARM_INT8_ROWS;
#else
constexpr int INT8_ROWS = MOST_ROWS;
#endif

// One tile of one group, for every row of it.
template <int BITS, int RUN>
void int8_group(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                int64_t tile) {
  const TileOf at(call, group, tile);
  const bool gated = call.activation != NONE;
  const int64_t begin = call.row_begin[group], end = call.row_begin[group + 1];
  float totals[2][INT8_ROWS * cpu_tiles::ROWS];
  for (int64_t row = begin; row < end;) {
    const int rows = tile_rows(end - row, INT8_ROWS);
    const Int8Rows row_tile = rows_from(x, row - begin, call.k, RUN);
    with_rows<INT8_ROWS>(rows, [&](auto m) {
      for (int w = 0; w < 1 + gated; ++w)
        int8_tile<BITS, decltype(m)::value, RUN>(tables[w], call.format, at.codes(w),
                                                     at.scales(w), row_tile, call.k, totals[w]);
    });
    at.finish(row, end, rows, totals[0], gated ? totals[1] : nullptr);
    row += rows;
  }
}

// x: the group's rows. tables: of gate and up.
void int8(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
          int64_t tile) {
  with_runs(call.format, [&](auto bits, auto run) {
    int8_group<decltype(bits)::value, decltype(run)::value>(call, tables, x, group, tile);
  });
}

}  // namespace blockscale::ISA_NAMESPACE
