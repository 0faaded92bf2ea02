// Dequantisation: two float32 products in a fixed order and one rounding to the output's dtype, as
// blockscale/numerics/dequantize.py defines it. Rows are decoded a segment at a time; tiles of the
// lanes layout a chunk at a time, sixteen rows together.
#pragma once
#include "exact.h"
#include "pack.h"
#include "panel.h"
#include "rows.h"

namespace blockscale::ISA_NAMESPACE {

inline float tensor_scale_of(const Dequantize& call, int64_t group, int64_t row) {
  return call.tensor_scale ? call.tensor_scale[group * call.n + row] : 1.0f;
}

inline uint8_t* output_at(const Dequantize& call, int64_t group, int64_t row, int64_t column) {
  const int64_t at = group * call.out.group_stride + row * call.out.row_stride + column;
  return static_cast<uint8_t*>(call.out.data) + at * bytes_of(call.out_dtype);
}

inline float scale_at(const Format& format, const uint8_t* scales, int64_t block) {
  if (format.scale_bytes == 1) return format.scale_table[scales[block]];
  float scale;
  std::memcpy(&scale, scales + 4 * block, 4);  // mapped bytes may be misaligned
  return scale;
}

inline u32x16 widen_bytes(const uint8_t* from) {
  typedef uint8_t u8x16 __attribute__((vector_size(16)));
  return __builtin_convertvector(load<u8x16>(from), u32x16);
}

// A row of bit streams or bit planes.
template <class Packing, class Decoder>
void dequantize_row(const Dequantize& call, const Decoder& decode, int64_t group, int64_t row) {
  const Format& format = call.format;
  const auto* codes = static_cast<const uint8_t*>(call.codes.data) +
                      group * call.codes.group_stride + row * call.codes.row_stride;
  const auto* scales = static_cast<const uint8_t*>(call.scales.data) +
                       group * call.scales.group_stride + row * call.scales.row_stride;
  const float tensor_scale = tensor_scale_of(call, group, row);
  uint8_t unpacked[SEGMENT] = {};
  float value[SEGMENT];
  for (int64_t first = 0; first < call.k; first += SEGMENT) {
    const int64_t count = call.k - first < SEGMENT ? call.k - first : SEGMENT;
    unpack<Packing>(codes + first * format.bits / 8, count, unpacked);
    for (int64_t i = 0; i < count; i += 16) store(value + i, decode(widen_bytes(unpacked + i)));
    for (int64_t i = 0; i < count;) {
      const int64_t block = (first + i) / format.block, end = (block + 1) * format.block - first;
      const float scale = scale_at(format, scales, block);
      for (const int64_t last = end < count ? end : count; i < last; ++i)
        value[i] = value[i] * scale * tensor_scale;
    }
    write_numbers(value, call.out_dtype, count, output_at(call, group, row, first));
  }
}

// Sixteen rows of a tile; those past n are padding.
template <class Decoder>
void dequantize_tile(const Dequantize& call, const Decoder& decode, int64_t group, int64_t tile) {
  const int64_t first = tile * lanes::ROWS;
  const int rows = int(call.n - first < lanes::ROWS ? call.n - first : lanes::ROWS);
  const auto* codes = static_cast<const uint8_t*>(call.codes.data) +
                      group * call.codes.group_stride + tile * call.codes.row_stride;
  const auto* scales = static_cast<const uint8_t*>(call.scales.data) +
                       group * call.scales.group_stride + tile * call.scales.row_stride;
  float tensor_scale[lanes::ROWS] = {};
  for (int r = 0; r < rows; ++r) tensor_scale[r] = tensor_scale_of(call, group, first + r);
  const auto by_row = load<f32x16>(tensor_scale);
  float column[lanes::CHUNK][lanes::ROWS], line[lanes::CHUNK];
  const auto visit = [&](int64_t k, f32x16 even, f32x16 odd) {
    const int64_t in_chunk = k % lanes::CHUNK;
    store(column[in_chunk], even * by_row);
    store(column[in_chunk + 1], odd * by_row);
    if (in_chunk + 2 < lanes::CHUNK) return;
    const int64_t start = k - in_chunk, left = call.k - start;
    const int64_t count = left < lanes::CHUNK ? left : lanes::CHUNK;
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < lanes::CHUNK; ++i) line[i] = column[i][r];
      write_numbers(line, call.out_dtype, count, output_at(call, group, first + r, start));
    }
  };
  walk_tile(decode, call.format, codes, scales, call.k, visit, [](f32x16) {});
}

}  // namespace blockscale::ISA_NAMESPACE
