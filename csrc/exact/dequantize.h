// Dequantisation: two float32 products in a fixed order and one rounding to the output's dtype, as
// blockscale/numerics/dequantize.py defines it. Rows are decoded a part at a time; tiles of the
// cpu_tiles layout a chunk at a time, sixteen rows together.
#pragma once
#include "exact/exact.h"
#include "exact/pack.h"
#include "exact/rows.h"
#include "products/decode.h"

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

// Any width; the matrix products do without the widest tables.
template <class Work>
void with_every_decoder(const Format& format, Work work) {
  if (format.decoder == TABLE && format.bits == 7) return work(TableDecoder<7>(format));
  if (format.decoder == TABLE && format.bits == 8) return work(TableDecoder<8>(format));
  with_decoder(format, work);
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
  uint8_t unpacked[ROW_PART] = {};
  float value[ROW_PART];
  for (int64_t first = 0; first < call.k; first += ROW_PART) {
    const int64_t count = call.k - first < ROW_PART ? call.k - first : ROW_PART;
    unpack<Packing>(codes + first * format.bits / 8, count, unpacked);
    for (int64_t i = 0; i < count; i += 16)
      store(value + i, decode.careful(widen_bytes(unpacked + i), 0));
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
  const Format& format = call.format;
  const int64_t first = tile * cpu_tiles::ROWS;
  const int rows = int(call.n - first < cpu_tiles::ROWS ? call.n - first : cpu_tiles::ROWS);
  const auto* codes = static_cast<const uint8_t*>(call.codes.data) +
                      group * call.codes.group_stride + tile * call.codes.row_stride;
  const auto* scales = static_cast<const uint8_t*>(call.scales.data) +
                       group * call.scales.group_stride + tile * call.scales.row_stride;
  float tensor_scale[cpu_tiles::ROWS] = {};
  for (int r = 0; r < rows; ++r) tensor_scale[r] = tensor_scale_of(call, group, first + r);
  const auto by_row = load<f32x16>(tensor_scale);
  float column[cpu_tiles::CHUNK][cpu_tiles::ROWS], line[cpu_tiles::CHUNK];
  const int width = format.block < cpu_tiles::CHUNK ? format.block : cpu_tiles::CHUNK;  // under one scale
  for (int64_t start = 0; start < call.k; start += cpu_tiles::CHUNK, codes += 64 * Decoder::BITS) {
    const Chunk<Decoder::BITS> chunk(codes);
    chunk.for_each(decode, [&](int pair, f32x16 even, f32x16 odd) {
      store(column[2 * pair], even);
      store(column[2 * pair + 1], odd);
    });
    const int64_t left = call.k - start, count = left < cpu_tiles::CHUNK ? left : cpu_tiles::CHUNK;
    for (int64_t i = 0; i < count; i += width) {
      const int64_t block = (start + i) / format.block;
      const f32x16 scale = scale_vector(format, scales + block * cpu_tiles::ROWS * format.scale_bytes);
      for (int64_t c = i; c < i + width; ++c)
        store(column[c], load<f32x16>(column[c]) * scale * by_row);
    }
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < cpu_tiles::CHUNK; ++i) line[i] = column[i][r];
      write_numbers(line, call.out_dtype, count, output_at(call, group, first + r, start));
    }
  }
}

}  // namespace blockscale::ISA_NAMESPACE
