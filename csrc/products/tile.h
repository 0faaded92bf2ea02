// One tile of one group: where its bytes are, and where its sums go.
#pragma once
#include "abi.h"
#include "cpu_tiles.h"
#include "products/epilogue.h"

namespace blockscale::ISA_NAMESPACE {

struct TileOf {
  const Matmul& call;
  int64_t group, tile, at;

  TileOf(const Matmul& call, int64_t group, int64_t tile)
      : call(call), group(group), tile(tile), at(group * cpu_tiles::tiles(call.n) + tile) {}

  // which: 0 for gate, or the only weight; 1 for up.
  Format format(int which) const {
    Format format = call.format;
    if (which) format.table = call.up_table;
    return format;
  }
  const Weight& weight(int which) const { return which ? call.up : call.gate; }
  const uint8_t* codes(int which) const {
    return weight(which).codes + at * cpu_tiles::tile_words(call.k, call.format.bits) * 4;
  }
  const uint8_t* scales(int which) const {
    const Format& format = call.format;
    return weight(which).scales + at * cpu_tiles::tile_scales(call.k, format.block) * format.scale_bytes;
  }

  // Of the weight's n, in this tile: all sixteen but in the last.
  int columns() const {
    const int64_t left = call.n - tile * cpu_tiles::ROWS;
    return int(left < cpu_tiles::ROWS ? left : cpu_tiles::ROWS);
  }

  // Sums of rows `begin` to `end`, at most `rows` of them, `pitch` floats apart; `up` is null where
  // nothing is gated.
  void finish(int64_t begin, int64_t end, int64_t rows, const float* gate, const float* up,
              int pitch = cpu_tiles::ROWS) const {
    const int64_t column = tile * cpu_tiles::ROWS;
    const int count = columns();
    for (int64_t m = 0; m < rows && begin + m < end; ++m)
      finish_row(call, group, begin + m, column, count, gate + m * pitch,
                 up ? up + m * pitch : nullptr);
  }
};

}  // namespace blockscale::ISA_NAMESPACE
