// The loop over row tiles that products without a stage share.
#pragma once
#include "products/row_tiles.h"
#include "products/tile.h"

namespace blockscale::ISA_NAMESPACE {

// One tile of one group, for every row of it. multiply(m, which, row, totals) fills totals[m][16] with the sums of m
// rows of x from `row` of the group on, m as a constant: of gate or the only weight, or of up.
template <int MOST, class Multiply>
void for_each_row_tile(const TileOf& at, Multiply multiply) {
  const bool gated = at.call.activation != NONE;
  const int64_t begin = at.call.row_begin[at.group], end = at.call.row_begin[at.group + 1];
  float totals[2][MOST * cpu_tiles::ROWS];
  for (int64_t row = begin; row < end;) {
    const int rows = tile_rows(end - row, MOST);
    with_rows<MOST>(rows, [&](auto m) {
      for (int w = 0; w < 1 + gated; ++w) multiply(m, w, row - begin, totals[w]);
    });
    at.finish(row, end, rows, totals[0], gated ? totals[1] : nullptr);
    row += rows;
  }
}

}  // namespace blockscale::ISA_NAMESPACE
