// The values of a weight as integers of eight bits, for products with int8 activations.
#pragma once
#include <array>
#include <cmath>

#include "products/kernels.h"

namespace blockscale {

// Exact for E2M1, whose values are halves; a codebook is rounded to multiples of its largest value
// over 127.
inline IntegerTable integer_table(const float* values, int bits) {
  const int count = 1 << bits;
  float largest = 0;
  bool halves = true;
  for (int i = 0; i < count; ++i) {
    const float size = std::fabs(values[i]);
    if (size > largest) largest = size;
    halves = halves && 2 * size == std::floor(2 * size) && size < 64;
  }
  IntegerTable table;
  table.unit = halves && largest > 1 ? 0.5f : (largest / 127 > 0 ? largest : 1.0f) / 127;
  for (int i = 0; i < 16; ++i) {
    table.integers[i] = int8_t(std::nearbyint(values[i % count] / table.unit));
    table.raised[i] = uint8_t(table.integers[i] + 128);
  }
  return table;
}

// Of gate and of up, which are one where nothing is gated.
inline std::array<IntegerTable, 2> integer_tables(const Matmul& call) {
  const int bits = call.format.bits;
  return {integer_table(call.format.table, bits), integer_table(call.up_table, bits)};
}

}  // namespace blockscale
