// x for int8.h: integers of eight bits, a scale for each block of 32, in the order of the kernel.
//
// Integers and scales are those of the format INT8, bit for bit as blockscale/numerics/quantize.py
// defines them: a block's scale is its amax, and a number becomes one of 255 values i / 127.
#pragma once
#include "cpu_tiles.h"
#include "exact/exact.h"
#include "exact/rows.h"
#include "products/int8_runs.h"

namespace blockscale::ISA_NAMESPACE {

// The integer of an int8 code, which is 128 higher; -127 has two codes.
inline int8_t integer_of(uint8_t code) { return int8_t(code == 0 ? -127 : int(code) - 128); }

// The nearest integer, ties to even, of a number that is far smaller.
inline float nearest_integer(float x) {
  const float no_fraction = 0x1.8p23f;  // a sum with it has no bits below one
  return (x + no_fraction) - no_fraction;
}

// Which of the values i / 127, as float32 holds them, is nearest; the lower one of two.
inline int8_t careful_integer(float quotient) {
  const auto middle = [](int i) {
    return (double(float(i / 127.0)) + double(float((i + 1) / 127.0))) / 2;
  };
  const int near = int(nearest_integer(quotient * 127));
  return int8_t(near + (quotient > middle(near)) - (quotient <= middle(near - 1)));
}

// One block; its scale is the result.
inline float round_block(const float* x, int8_t* to) {
  uint32_t largest = 0;
  for (int i = 0; i < INT8_BLOCK; ++i) {
    const uint32_t bits = magnitude_bits(x[i]);
    largest = bits > largest ? bits : largest;
  }
  if (largest == 0 || largest >= INFINITE_BITS) {
    std::memset(to, 0, INT8_BLOCK);
    return largest ? bits_to_float(NAN_BITS) : 0.0f;
  }
  const float amax = bits_to_float(largest);
  // Roundings of the place, and of the values whose middles decide, are less than 2^-17 together:
  // closer to a middle than 2^-15 it takes care to tell the sides.
  const uint32_t clear = float_to_bits(0.5f - 0x1p-15f);
  uint32_t unclear = 0;
  for (int i = 0; i < INT8_BLOCK; ++i) {
    const float place = x[i] / amax * 127, near = nearest_integer(place);
    unclear |= uint32_t(magnitude_bits(place - near) > clear);
    to[i] = int8_t(int32_t(near));
  }
  if (unclear)
    for (int i = 0; i < INT8_BLOCK; ++i) to[i] = careful_integer(x[i] / amax);
  return amax;
}

// Four bytes with room for another after each.
inline uint64_t spaced(uint32_t bytes) {
  const uint64_t pairs = (bytes | uint64_t(bytes) << 16) & 0x0000ffff0000ffffu;
  return (pairs | pairs << 8) & 0x00ff00ff00ff00ffu;
}

// A run of integers as the words that meet those of a weight, `pitch` apart. A word of a weight,
// shifted down by a code at a time, has even columns in its two low bytes and the next odd ones in
// the two high; its second and fourth byte are as many columns behind as two bytes hold codes.
template <int BITS, int RUN>
inline void arrange_run(const int8_t* integers, int pitch, uint32_t* to) {
  constexpr int BEHIND = 16 / BITS;
  for (int first = 0; first < RUN; first += 2 * BEHIND)
    for (int i = first; i < first + BEHIND; i += 4, to += 2 * pitch) {
      uint32_t front, behind;
      std::memcpy(&front, integers + i, 4);
      std::memcpy(&behind, integers + i + BEHIND, 4);
      const uint64_t words = spaced(front) | spaced(behind) << 8;
      to[0] = uint32_t(words);
      to[pitch] = uint32_t(words >> 32);
    }
}

// Integers and scales of some columns of a row: `count` from `first`.
inline void round_row(const Matmul& call, int64_t row, int64_t first, int64_t count, int8_t* integers,
                      float* scales) {
  const int64_t at = row * call.x_stride + first;
  if (call.x_dtype == INT8) {
    const auto* codes = static_cast<const uint8_t*>(call.x) + at;
    for (int64_t i = 0; i < count; ++i) integers[i] = integer_of(codes[i]);
    std::memcpy(scales, call.x_block_scale + (row * call.k + first) / INT8_BLOCK,
                size_t(count / INT8_BLOCK) * sizeof(float));
    return;
  }
  float x[INT8_COLUMNS];
  read_numbers(static_cast<const uint8_t*>(call.x) + at * bytes_of(call.x_dtype), call.x_dtype, count,
               1, x);
  for (int64_t i = 0; i < count; i += INT8_BLOCK)
    scales[i / INT8_BLOCK] = round_block(x + i, integers + i);
}

// Some columns of the row that is `place`-th of its row tile: at most INT8_COLUMNS from `first`.
template <int BITS, int RUN>
void arrange_row(const Int8Arrangement& work, const RowTile& row_tile, int place, int64_t first) {
  const Matmul& call = work.call;
  const int64_t left = call.k - first, count = left < INT8_COLUMNS ? left : INT8_COLUMNS;
  int8_t integers[INT8_COLUMNS] = {};
  float scales[INT8_COLUMNS / INT8_BLOCK] = {};
  if (row_tile.begin + place < row_tile.end)
    round_row(call, row_tile.begin + place, first, count, integers, scales);

  const Int8Rows to = rows_from(work.to, row_tile.before, call.k, RUN);
  const bool tiled = row_tile.rows == AMX_TILE_M;
  const int pitch = tiled ? 1 : row_tile.rows, begin = tiled ? place * RUN / 4 : place;
  for (int64_t i = 0; i < count; i += RUN) {
    const int64_t at = (first + i) / RUN * row_tile.rows;
    arrange_run<BITS, RUN>(integers + i, pitch, to.words + at * RUN / 4 + begin);
    int sum = 0;
    for (int j = 0; j < RUN; ++j) sum += integers[i + j];
    to.starts[at + place] = -work.offset * sum;
    to.scales[at + place] = scales[i / INT8_BLOCK] / 127;
  }
}

}  // namespace blockscale::ISA_NAMESPACE
