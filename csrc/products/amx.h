// Many rows of bfloat16 x: weights are decoded to bfloat16 tiles and multiplied by AMX, which adds
// in float32. A tile of the cpu_tiles layout, decoded pair after pair, is just what AMX wants as its
// second operand: sixteen columns to a row, two k to a lane.
//
// Work goes by panels of 32 columns and stages of k. Where x has at most 32 rows, their sums stay in
// tile registers and a stage is a few chunks, in the first-level cache; for more rows a stage is larger,
// stays in the second-level cache, and meets every row of x before the next.
#pragma once
#include <immintrin.h>

#include "isa/in_memory.h"
#include "products/kernels.h"
#include "products/stage.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int TILE_BYTES = 1024;  // 16 rows of 64 bytes
constexpr int PANEL_TILES = 2;    // 32 columns
constexpr int PANEL_COLUMNS = PANEL_TILES * cpu_tiles::ROWS;
constexpr int TILE_M = 32;    // of x
constexpr int FEW_CHUNKS = 4, MANY_CHUNKS = 64;

// Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

  // Products take as long as there are rows of x.
  explicit TileConfig(int64_t x_rows) {
    const uint8_t upper = uint8_t(x_rows < 16 ? x_rows : 16);
    rows[0] = rows[1] = rows[4] = upper;
  }
};

// Adds to the exponents of a pair of bfloat16 numbers; zero stays zero.
inline u32x16 raise_pair(u32x16 pair, __m512i by) {
  const __m512i bits = (__m512i)pair;
  const __mmask32 nonzero = _mm512_test_epi16_mask(bits, _mm512_set1_epi16(0x7fff));
  return (u32x16)_mm512_mask_add_epi16(bits, nonzero, bits, by);
}

// Two columns paired in each lane: exact where their numbers fit, to the nearest otherwise.
template <bool EXACT>
inline u32x16 to_bfloat16_pair(f32x16 even, f32x16 odd) {
  const uint32_t half = EXACT ? 0u : 0x8000u;
  return ((as_bits(even) + half) >> 16u) | ((as_bits(odd) + half) & 0xffff0000u);
}

// AMX takes subnormal numbers for zero: a scale outside 2^-100 to 2^100 could make some. Lanes past n do not count:
// the zero bytes that pad them are 2^-127 to E8M0.
inline bool unsafe(f32x16 scale, i32x16 within_n) {
  const u32x16 size = as_bits(scale) & 0x7fffffffu;
  const uint32_t low = 27u << 23, high = 227u << 23;
  return any(within_n & (size != 0u) & ((size < low) | (size > high)));
}

inline i32x16 lanes_within_n(const TileOf& at) {
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < at.columns();
}

// Where a stage puts a pair of columns of one of its tiles.
struct StageTile {
  uint8_t* tile;
  void put(int64_t chunk, int pair, u32x16 columns) const {
    store(tile + chunk * PANEL_TILES * TILE_BYTES + pair * 64, columns);
  }
};

// Any scales: products in float32, then to bfloat16. False where a scale was unsafe.
template <bool EXACT, class Decoder>
bool decode_tile(const Decoder decode, const TileOf& at, int which, int64_t first, int64_t chunks,
                 bool check, const StageTile& to) {
  const i32x16 within_n = lanes_within_n(at);
  bool safe = true;
  for_each_pair(
      decode, at, which, first, chunks,
      [&](int64_t chunk, int pair, f32x16 even, f32x16 odd) {
        to.put(chunk, pair, to_bfloat16_pair<EXACT>(even, odd));
      },
      [&](f32x16 scale) { safe = safe && !(check && unsafe(scale, within_n)); });
  return safe;
}

// Two codes of each lane to two bfloat16 numbers, where plain.
template <class Decoder>
struct PairDecoder;

template <int BITS>
struct PairDecoder<TableDecoder<BITS>> {
  __m512i low, high;  // 64 entries; a shorter table repeats

  explicit PairDecoder(const Format& format) {
    alignas(64) uint16_t entries[64];
    for (int i = 0; i < 64; ++i) entries[i] = to_bfloat16(format.table[i & ((1 << BITS) - 1)]);
    low = _mm512_load_si512(entries);
    high = _mm512_load_si512(entries + 32);
  }
  u32x16 operator()(u32x16 word, uint32_t shift) const {
    const __m512i at = (__m512i)(word >> shift);
    if constexpr (BITS <= 5) return (u32x16)_mm512_permutexvar_epi16(at, low);
    return (u32x16)_mm512_permutex2var_epi16(low, at, high);
  }
};

template <int E, bool INFINITE>
struct PairDecoder<FloatDecoder<E, INFINITE>> {
  explicit PairDecoder(const Format&) {}
  u32x16 operator()(u32x16 word, uint32_t shift) const {
    const __m512i top = _mm512_slli_epi16((__m512i)word, 8u - shift);  // the code in the upper byte
    const __m512i moved = _mm512_and_si512(_mm512_srai_epi16(top, 8 - E),
                                           _mm512_set1_epi16(short(0x8000u | 0x7fu << E)));
    const int bias = 127 - FloatDecoder<E, INFINITE>::BIAS;
    return (u32x16)_mm512_add_epi16(moved, _mm512_set1_epi16(short(bias << 7)));
  }
};

// Scales that are powers of two: an addition to the exponents, both columns of a pair at once.
template <class Decoder>
bool decode_tile_by_exponents(const Decoder decode, const TileOf& at, int which, int64_t first,
                              int64_t chunks, const StageTile& to) {
  constexpr int BITS = Decoder::BITS;
  const Format format = at.format(which);
  const PairDecoder<Decoder> pairs(format);
  const int64_t start = first * cpu_tiles::CHUNK;
  const uint8_t* codes = at.codes(which) + first * BITS * 64;
  ChunkScales scales(format, at.scales(which) + start / format.block * cpu_tiles::ROWS, at.call.k - start);
  const i32x16 within_n = lanes_within_n(at);
  bool safe = true;
  for (int64_t c = 0; c < chunks; ++c, codes += 64 * BITS) {
    const Chunk<BITS> chunk(codes);
    prefetch<BITS>(codes);
    scales.advance();
    safe = safe && !unsafe(scales.first, within_n);
    const u32x16 exponent = ((as_bits(scales.first) >> 23u) - 127u) << 7u & 0xffffu;
    const __m512i raise = (__m512i)(exponent | exponent << 16u);
    for (int w = 0; w < BITS; ++w) {
      const u32x16 word = chunk.words[w];
      const bool plain = decode.plain(word);
      for (int i = 0; i < Chunk<BITS>::IN_WORD; ++i) {
        const uint32_t shift = uint32_t(BITS * i);
        to.put(c, w * Chunk<BITS>::IN_WORD + i,
               plain ? raise_pair(pairs(word, shift), raise)
                     : to_bfloat16_pair<true>(decode.careful(word, shift) * scales.first,
                                              decode.careful(word, shift + 16) * scales.first));
      }
    }
    chunk.in_spare_bits(
        [&](int pair, u32x16 bits) { to.put(c, pair, raise_pair(pairs(bits, 0), raise)); });
  }
  return safe;
}

// Decodes `chunks` chunks from chunk `first` of the two tiles of a panel; columns past n are zero.
// False where a scale was unsafe.
template <class Decoder>
bool decode_stage(const Decoder& decode, const AmxFacts& facts, const Matmul& call, int which,
                 int64_t group, int64_t tile, int64_t first, int64_t chunks, uint8_t* stage) {
  bool safe = true;
  for (int t = 0; t < PANEL_TILES && safe; ++t) {
    const StageTile to{stage + t * TILE_BYTES};
    if (tile + t >= cpu_tiles::tiles(call.n)) {
      for (int64_t c = 0; c < chunks; ++c)
        for (int pair = 0; pair < cpu_tiles::PAIRS; ++pair) to.put(c, pair, u32x16{});
      continue;
    }
    const TileOf at(call, group, tile + t);
    safe = facts.powers_of_two ? decode_tile_by_exponents(decode, at, which, first, chunks, to)
           : facts.exact
               ? decode_tile<true>(decode, at, which, first, chunks, facts.check_scales, to)
               : decode_tile<false>(decode, at, which, first, chunks, facts.check_scales, to);
  }
  return safe;
}

enum class Start { ZERO, LOAD, KEEP };

// sums[32][32] (+)= x tiles @ stage. x1 is the tile of rows 16 to 31; SECOND: there are some.
template <bool SECOND>
void multiply(const uint8_t* x0, const uint8_t* x1, const uint8_t* stage, int64_t chunks, Start start,
              bool finish, float* sums) {
  constexpr int PITCH = PANEL_COLUMNS * sizeof(float);
  float* const lower = sums + 16 * PANEL_COLUMNS;
  if (start == Start::ZERO) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else if (start == Start::LOAD) {
    _tile_loadd(0, sums, PITCH);
    _tile_loadd(1, sums + 16, PITCH);
    if (SECOND) {
      _tile_loadd(2, lower, PITCH);
      _tile_loadd(3, lower + 16, PITCH);
    }
  }
  for (int64_t c = 0; c < chunks; ++c) {
    _tile_loadd(4, x0 + c * TILE_BYTES, 64);
    _tile_loadd(6, stage + c * PANEL_TILES * TILE_BYTES, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, stage + (c * PANEL_TILES + 1) * TILE_BYTES, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (SECOND) {
      _tile_loadd(5, x1 + c * TILE_BYTES, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  if (!finish) return;
  _tile_stored(0, sums, PITCH);
  _tile_stored(1, sums + 16, PITCH);
  if (SECOND) {
    _tile_stored(2, lower, PITCH);
    _tile_stored(3, lower + 16, PITCH);
  }
}

int64_t amx_stage_bytes(const Format& format) {
  return stage_chunks(format, MANY_CHUNKS) * PANEL_TILES * TILE_BYTES;
}

// Panel `tile`, tile + 1 of one group. x: its rows, in tiles [row tile][chunk] of 16 x 32 bfloat16.
//
// A panel with an unsafe scale is left alone, and the answer is false: `stream` does it.
bool multiply_panel(const Matmul& call, const uint8_t* x, int64_t group, int64_t tile,
                    const AmxFacts& facts, const AmxScratch& scratch) {
  const int64_t begin = call.row_begin[group], rows = call.row_begin[group + 1] - begin;
  const int64_t chunks = cpu_tiles::chunks(call.k);
  const int64_t row_tiles = (rows + TILE_M - 1) / TILE_M;
  const bool once = row_tiles == 1;
  const int64_t depth = stage_chunks(call.format, once ? FEW_CHUNKS : MANY_CHUNKS);
  const int weights = call.activation == NONE ? 1 : 2;
  const int64_t sums_of_weight = row_tiles * TILE_M * PANEL_COLUMNS;
  const TileConfig config(once ? rows : TILE_M);
  in_memory(&config);
  _tile_loadconfig(&config);
  bool safe = true;
  for (int w = 0; w < weights; ++w)
    with_decoder(TileOf(call, group, tile).format(w), [&](const auto& decode) {
      for (int64_t first = 0; first < chunks && safe; first += depth) {
        const int64_t count = chunks - first < depth ? chunks - first : depth;
        safe = decode_stage(decode, facts, call, w, group, tile, first, count, scratch.stage);
        in_memory(scratch.stage);
        const Start start = first == 0 ? Start::ZERO : once ? Start::KEEP : Start::LOAD;
        const bool finish = !once || first + count == chunks;
        for (int64_t b = 0; b < row_tiles && safe; ++b) {
          const uint8_t* x0 = x + (b * 2 * chunks + first) * TILE_BYTES;
          float* sums = scratch.sums + w * sums_of_weight + b * TILE_M * PANEL_COLUMNS;
          if (rows - b * TILE_M > 16)
            multiply<true>(x0, x0 + chunks * TILE_BYTES, scratch.stage, count, start, finish, sums);
          else
            multiply<false>(x0, x0, scratch.stage, count, start, finish, sums);
        }
      }
    });
  _tile_release();
  if (!safe) return false;
  for (int t = 0; t < PANEL_TILES && tile + t < cpu_tiles::tiles(call.n); ++t) {
    const float* gate = scratch.sums + t * cpu_tiles::ROWS;
    TileOf(call, group, tile + t)
        .finish(begin, begin + rows, rows, gate, weights == 2 ? gate + sums_of_weight : nullptr,
                PANEL_COLUMNS);
  }
  return true;
}

}  // namespace blockscale::ISA_NAMESPACE
