// Many rows of bfloat16 x: weights are decoded to bfloat16 tiles and multiplied by AMX, which adds
// in float32. A tile of the lanes layout, decoded pair after pair, is just what AMX wants as its
// second operand: sixteen columns to a row, two k to a lane.
//
// Work goes by panels of 32 columns and slabs of k: a slab of a panel is decoded once, stays in the
// second-level cache, and meets every row of x before the next.
#pragma once
#include <immintrin.h>

#include "kernels.h"
#include "panel.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int TILE_BYTES = 1024;    // 16 rows of 64 bytes
constexpr int PANEL_TILES = 2;      // 32 columns
constexpr int BLOCK_ROWS = 32;      // of x

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Nearest bfloat16 of two columns, paired in each lane.
inline u32x16 to_bfloat16_pair(f32x16 even, f32x16 odd) {
  return ((as_bits(even) + 0x8000u) >> 16u) | ((as_bits(odd) + 0x8000u) & 0xffff0000u);
}

// Chunks of k that are decoded together: whole blocks, and no more than fits beside x in a cache.
int64_t slab_chunks(const Format& format) {
  const int64_t block = format.block / lanes::CHUNK;
  return block > 64 ? block : 64;
}

// Decodes `chunks` chunks from chunk `first` of the two tiles of a panel; columns past n are zero.
// True where a scale was unsafe.
template <class Decoder>
bool decode_slab(const Decoder& decode, const Matmul& call, int which, int64_t group, int64_t tile,
                 int64_t first, int64_t chunks, bool check, uint8_t* slab) {
  const Format& format = call.format;
  const int64_t start = first * lanes::CHUNK;
  const int64_t k = call.k - start < chunks * lanes::CHUNK ? call.k - start : chunks * lanes::CHUNK;
  bool unsafe = false;
  for (int t = 0; t < PANEL_TILES; ++t) {
    uint8_t* to = slab + t * TILE_BYTES;
    if (tile + t >= lanes::tiles(call.n)) {
      for (int64_t c = 0; c < chunks; ++c)
        std::memset(to + c * PANEL_TILES * TILE_BYTES, 0, TILE_BYTES);
      continue;
    }
    const TileOf at(call, group, tile + t);
    walk_tile(
        decode, format, at.codes(which) + first * format.bits * 64,
        at.scales(which) + start / format.block * lanes::ROWS * format.scale_bytes, k,
        [&](int64_t column, f32x16 even, f32x16 odd) {
          const int64_t chunk = column / lanes::CHUNK, pair = column % lanes::CHUNK / 2;
          store(to + chunk * PANEL_TILES * TILE_BYTES + pair * 64, to_bfloat16_pair(even, odd));
        },
        [&](f32x16 scale) {
          if (!check) return;
          const u32x16 size = as_bits(scale) & 0x7fffffffu;
          const uint32_t low = 27u << 23, high = 227u << 23;  // 2^-100 and 2^100
          const i32x16 bad = (i32x16)((size != 0u) & ((size < low) | (size > high)));
          for (int i = 0; i < 16; ++i) unsafe |= bad[i] != 0;
        });
  }
  return unsafe;
}

// sums[32][32] += x tiles @ slab. x1 is the tile of rows 16 to 31; SECOND: there are some.
template <bool SECOND>
void multiply(const uint8_t* x0, const uint8_t* x1, const uint8_t* slab, int64_t chunks, bool fresh,
              float* sums) {
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, 128);
    _tile_loadd(1, sums + 16, 128);
    if (SECOND) {
      _tile_loadd(2, sums + 16 * 32, 128);
      _tile_loadd(3, sums + 16 * 32 + 16, 128);
    }
  }
  for (int64_t c = 0; c < chunks; ++c) {
    _tile_loadd(4, x0 + c * TILE_BYTES, 64);
    _tile_loadd(6, slab + c * PANEL_TILES * TILE_BYTES, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, slab + (c * PANEL_TILES + 1) * TILE_BYTES, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (SECOND) {
      _tile_loadd(5, x1 + c * TILE_BYTES, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if (SECOND) {
    _tile_stored(2, sums + 16 * 32, 128);
    _tile_stored(3, sums + 16 * 32 + 16, 128);
  }
}

// Panel `tile`, tile + 1 of one group. x: its rows, in tiles [row tile][chunk] of 16 x 32 bfloat16.
//
// AMX takes subnormal numbers for zero. A panel with a scale that could make some is left alone, and
// the answer is false: the streaming kernel does it.
bool multiply_panel(const Matmul& call, const uint8_t* x, int64_t group, int64_t tile, bool check,
                    const AmxScratch& scratch) {
  const int64_t chunks = lanes::chunks(call.k), slab = slab_chunks(call.format);
  const int64_t begin = call.row_begin[group], rows = call.row_begin[group + 1] - begin;
  const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, block_sums = BLOCK_ROWS * 32;
  const int weights = call.activation == NONE ? 1 : 2;
  const TileConfig config;
  _tile_loadconfig(&config);
  bool safe = true;
  for (int64_t first = 0; first < chunks && safe; first += slab) {
    const int64_t count = chunks - first < slab ? chunks - first : slab;
    for (int w = 0; w < weights && safe; ++w) {
      with_decoder(call.format, [&](const auto& decode) {
        safe = !decode_slab(decode, call, w, group, tile, first, count, check, scratch.slab[w]);
      });
      for (int64_t b = 0; b < blocks && safe; ++b) {
        const uint8_t* x0 = x + (b * 2 * chunks + first) * TILE_BYTES;
        const uint8_t* x1 = x0 + chunks * TILE_BYTES;
        float* sums = scratch.sums + (w * blocks + b) * block_sums;
        if (rows - b * BLOCK_ROWS > 16)
          multiply<true>(x0, x1, scratch.slab[w], count, first == 0, sums);
        else
          multiply<false>(x0, x0, scratch.slab[w], count, first == 0, sums);
      }
    }
  }
  _tile_release();
  if (!safe) return false;
  for (int t = 0; t < PANEL_TILES && tile + t < lanes::tiles(call.n); ++t) {
    const TileOf at(call, group, tile + t);
    for (int64_t row = 0; row < rows; ++row) {
      const float* sums = scratch.sums + row * 32 + t * 16;
      at.finish(begin + row, begin + rows, 1, sums,
                weights == 2 ? sums + blocks * block_sums : nullptr);
    }
  }
  return true;
}

}  // namespace blockscale::ISA_NAMESPACE
