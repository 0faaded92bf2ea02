// The functions of exact.h, for one instruction set.
#pragma once
#include <type_traits>

#include "amax.h"
#include "dequantize.h"
#include "int8_rows.h"
#include "quantize.h"
#include "repack.h"

namespace blockscale::ISA_NAMESPACE {

void quantize(const Quantize& call, int64_t begin, int64_t end) {
  if (call.is_float) return quantize_segments<FloatEncoder>(call, begin, end);
  return quantize_segments<CodebookEncoder>(call, begin, end);
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
  with_segments(work.call.format, [&](auto bits, auto segment) {
    for (int64_t i = begin; i < end; ++i) {
      const Pass& pass = work.passes[i / in_row];
      for (int place = 0; place < pass.rows; ++place)
        arrange_row<decltype(bits)::value, decltype(segment)::value>(work, pass, place,
                                                                     i % in_row * INT8_COLUMNS);
    }
  });
}

}  // namespace blockscale::ISA_NAMESPACE
