// Rows of bit streams or bit planes into tiles of the cpu_tiles layout, scales along.
#pragma once
#include "cpu_tiles.h"
#include "exact/pack.h"
#include "isa/vec.h"

namespace blockscale::ISA_NAMESPACE {

// Adds the codes of one column, one to a lane, to the words of a chunk.
template <int BITS>
inline void put_column(u32x16 (&words)[BITS], int column, u32x16 code) {
  const int pair = column / 2, half = 16 * (column % 2);
  for (int i = 0; i < cpu_tiles::piece_count(BITS, pair); ++i) {
    const cpu_tiles::Piece p = cpu_tiles::piece(BITS, pair, i);
    const uint32_t mask = (1u << p.width) - 1u;
    words[p.word] |= (code >> uint32_t(p.to) & mask) << uint32_t(p.shift + half);
  }
}

template <int BITS, class Packing>
void repack_codes(const Repack& call, int64_t group, int64_t tile, int rows) {
  const auto* from = static_cast<const uint8_t*>(call.codes.data) +
                     group * call.codes.group_stride +
                     tile * cpu_tiles::ROWS * call.codes.row_stride;
  uint8_t* to = call.codes_out +
                (group * cpu_tiles::tiles(call.n) + tile) * cpu_tiles::tile_words(call.k, BITS) * 4;
  for (int64_t start = 0; start < call.k; start += cpu_tiles::CHUNK, to += 64 * BITS) {
    const int64_t left = call.k - start, count = left < cpu_tiles::CHUNK ? left : cpu_tiles::CHUNK;
    uint8_t columns[cpu_tiles::CHUNK][cpu_tiles::ROWS] = {};
    for (int r = 0; r < rows; ++r) {
      uint8_t line[cpu_tiles::CHUNK] = {};
      unpack<Packing>(from + r * call.codes.row_stride + start * BITS / 8, count, line);
      for (int c = 0; c < cpu_tiles::CHUNK; ++c) columns[c][r] = line[c];
    }
    u32x16 words[BITS] = {};
    for (int c = 0; c < cpu_tiles::CHUNK; ++c) put_column(words, c, widen_bytes(columns[c]));
    for (int w = 0; w < BITS; ++w) store(to + 64 * w, words[w]);
  }
}

inline void repack_scales(const Repack& call, int64_t group, int64_t tile, int rows) {
  const auto* from = static_cast<const uint8_t*>(call.scales.data) +
                     group * call.scales.group_stride +
                     tile * cpu_tiles::ROWS * call.scales.row_stride;
  const int64_t blocks = call.k / call.block, bytes = call.scale_bytes;
  uint8_t* to = call.scales_out +
                (group * cpu_tiles::tiles(call.n) + tile) * blocks * cpu_tiles::ROWS * bytes;
  std::memset(to, 0, size_t(blocks * cpu_tiles::ROWS * bytes));
  for (int r = 0; r < rows; ++r)
    for (int64_t b = 0; b < blocks; ++b)
      std::memcpy(to + (b * cpu_tiles::ROWS + r) * bytes, from + r * call.scales.row_stride + b * bytes,
                  size_t(bytes));
}

template <int BITS>
void repack_tile(const Repack& call, int64_t group, int64_t tile) {
  const int64_t left = call.n - tile * cpu_tiles::ROWS;
  const int rows = int(left < cpu_tiles::ROWS ? left : cpu_tiles::ROWS);
  with_packing<BITS>(call.code_layout, [&](auto packing) {
    repack_codes<BITS, decltype(packing)>(call, group, tile, rows);
  });
  repack_scales(call, group, tile, rows);
}

}  // namespace blockscale::ISA_NAMESPACE
