// The functions of exact.h, for one instruction set.
#pragma once
#include <type_traits>

#include "exact/amax.h"
#include "exact/dequantize.h"
#include "exact/int8_rows.h"
#include "exact/quantize.h"
#include "exact/repack.h"

namespace blockscale::ISA_NAMESPACE {

void quantize(const Quantize& call, int64_t begin, int64_t end) {
  if (call.is_float) return quantize_row_parts<FloatEncoder>(call, begin, end);
  return quantize_row_parts<CodebookEncoder>(call, begin, end);
}

void dequantize(const Dequantize& call, int64_t begin, int64_t end) {
  const int64_t rows = call.code_layout == CPU_TILES ? cpu_tiles::tiles(call.n) : call.n;
  with_every_decoder(call.format, [&](auto decode) {
    if (call.code_layout == CPU_TILES) {
      for (int64_t i = begin; i < end; ++i) dequantize_tile(call, decode, i / rows, i % rows);
      return;
    }
    with_packing<decltype(decode)::BITS>(call.code_layout, [&](auto packing) {
      for (int64_t i = begin; i < end; ++i)
        dequantize_row<decltype(packing)>(call, decode, i / rows, i % rows);
    });
  });
}

void repack(const Repack& call, int64_t begin, int64_t end) {
  const int64_t tiles = cpu_tiles::tiles(call.n);
  const auto each = [&](auto bits) {
    for (int64_t i = begin; i < end; ++i)
      repack_tile<decltype(bits)::value>(call, i / tiles, i % tiles);
  };
  switch (call.bits) {
    case 2: return each(std::integral_constant<int, 2>());
    case 3: return each(std::integral_constant<int, 3>());
    case 4: return each(std::integral_constant<int, 4>());
    case 5: return each(std::integral_constant<int, 5>());
    case 6: return each(std::integral_constant<int, 6>());
    case 7: return each(std::integral_constant<int, 7>());
    default: return each(std::integral_constant<int, 8>());
  }
}

void amax(const Amax& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) call.out[row] = row_amax(call, row);
}

void arrange_int8(const Int8Arrangement& work, int64_t begin, int64_t end) {
  const int64_t in_row = (work.call.k + INT8_COLUMNS - 1) / INT8_COLUMNS;
  with_runs(work.call.format, [&](auto bits, auto run) {
    for (int64_t i = begin; i < end; ++i) {
      const RowTile& row_tile = work.row_tiles[i / in_row];
      for (int place = 0; place < row_tile.rows; ++place)
        arrange_row<decltype(bits)::value, decltype(run)::value>(work, row_tile, place,
                                                                     i % in_row * INT8_COLUMNS);
    }
  });
}

}  // namespace blockscale::ISA_NAMESPACE
