// Stages of decoded weights, for many rows of x: some tiles wide, some chunks deep, with their scales.
#pragma once
#include "products/decode.h"
#include "products/tile.h"

namespace blockscale::ISA_NAMESPACE {

// The depth of a stage in chunks: `wanted`, or a block where blocks are longer.
inline int64_t stage_chunks(const Format& format, int64_t wanted) {
  const int64_t block = format.block / cpu_tiles::CHUNK;
  return block > wanted ? block : wanted;
}

// Decodes `chunks` chunks from chunk `first` of a tile: visit(chunk, pair, even, odd) gets sixteen
// rows of two columns, with their scales; on_scale(scale) sees each vector of scales.
template <class Decoder, class Visit, class OnScale>
ALWAYS_INLINE void for_each_pair(const Decoder& decode, const TileOf& at, int which, int64_t first,
                          int64_t chunks, Visit visit, OnScale on_scale) {
  constexpr int BITS = Decoder::BITS;
  const Format& format = at.call.format;
  const int64_t start = first * cpu_tiles::CHUNK;
  const uint8_t* codes = at.codes(which) + first * BITS * 64;
  const uint8_t* scale_bytes =
      at.scales(which) + start / format.block * cpu_tiles::ROWS * format.scale_bytes;
  ChunkScales scales(format, scale_bytes, at.call.k - start);
  for (int64_t c = 0; c < chunks; ++c, codes += 64 * BITS) {
    const Chunk<BITS> chunk(codes);
    prefetch<BITS>(codes);
    scales.advance();
    on_scale(scales.first);
    on_scale(scales.second);
    chunk.for_each(decode, [&](int pair, f32x16 even, f32x16 odd) {
      const f32x16 scale = pair < cpu_tiles::PAIRS / 2 ? scales.first : scales.second;
      visit(c, pair, even * scale, odd * scale);
    });
  }
}

#if !defined(NEON_KERNELS)
// The same, stored: to[k][PITCH] gets sixteen rows of column k.
template <int PITCH, class Decoder>
void decode_columns(const Decoder& decode, const TileOf& at, int which, int64_t first, int64_t chunks, float* to) {
  for_each_pair(
      decode, at, which, first, chunks,
      [&](int64_t chunk, int pair, f32x16 even, f32x16 odd) {
        float* column = to + (chunk * cpu_tiles::CHUNK + 2 * pair) * PITCH;
        store(column, even);
        store(column + PITCH, odd);
      },
      [](f32x16) {});
}
#endif

}  // namespace blockscale::ISA_NAMESPACE
