// The largest finite magnitude of a row, as bits: they order like the magnitudes.
#pragma once
#include "exact/exact.h"
#include "exact/rows.h"

namespace blockscale::ISA_NAMESPACE {

inline int32_t row_amax(const Amax& call, int64_t row) {
  const int64_t size = bytes_of(call.dtype);
  const auto* x = static_cast<const uint8_t*>(call.x) + row * call.row_stride * size;
  float part[ROW_PART];
  uint32_t largest = 0;
  for (int64_t first = 0; first < call.k; first += ROW_PART) {
    const int64_t count = call.k - first < ROW_PART ? call.k - first : ROW_PART;
    const auto* from = x + first * call.column_stride * size;
    read_numbers(from, call.dtype, count, call.column_stride, part);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = magnitude_bits(part[i]), finite = bits < INFINITE_BITS ? bits : 0;
      largest = finite > largest ? finite : largest;
    }
  }
  return int32_t(largest);
}

}  // namespace blockscale::ISA_NAMESPACE
