// The streaming product: every weight is read once, decoded in registers, and multiplied by a few
// rows of x in float32. For the rows of a decoding step this runs at the speed of memory.
//
// Sixteen rows of the weight are sixteen lanes, so a sum runs along k inside its lane: in a fixed
// order, with no reduction, and whatever thread has the tile.
#pragma once
#include "decode.h"
#include "epilogue.h"

namespace blockscale::ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int MOST_ROWS = 8;  // of x at a time: sums of eight rows fill half the registers
#else
constexpr int MOST_ROWS = 4;
#endif

inline f32x16 scale_vector(const Format& format, const uint8_t* at) {
  if (format.scale_bytes == 1) return lookup_bytes(format.scale_table, at);
  return load<f32x16>(at);
}

template <class Decoder, int M>
struct Sums {
  f32x16 partial[M], total[M];

  // A pair of codes at the bottom of the two halves of each lane, times two columns of x.
  inline void add(const Decoder& decode, u32x16 pair, const float* x, int64_t stride) {
    const f32x16 even = decode(pair), odd = decode(pair >> 16u);
    for (int m = 0; m < M; ++m) {
      partial[m] += even * x[m * stride];
      partial[m] += odd * x[m * stride + 1];
    }
  }

  inline void apply(f32x16 scale) {
    for (int m = 0; m < M; ++m) {
      total[m] += partial[m] * scale;
      partial[m] = f32x16{};
    }
  }
};

// Codes narrow enough for two blocks of 16 to begin on words of their own.
constexpr bool splits_chunks(int bits) { return bits == 2 || bits == 4 || bits == 8; }

// totals[M][16] of one tile. HALVES: blocks of 16, two to a chunk; else of 32 or more.
template <class Decoder, int M, bool HALVES>
void stream_tile(const Decoder& decode, const Format& format, const uint8_t* codes,
                 const uint8_t* scales, const float* x, int64_t stride, int64_t k,
                 float* totals) {
  constexpr int BITS = Decoder::BITS, IN_WORD = lanes::codes_per_half(BITS);
  constexpr int WORDS_PER_HALF = BITS / 2;  // of a chunk, where blocks are halves of it
  Sums<Decoder, M> sums{};
  const int64_t chunks = lanes::chunks(k), chunks_per_block = format.block / lanes::CHUNK;
  int64_t left = chunks_per_block, blocks = k / format.block;
  const auto apply_scale = [&] {
    if (blocks-- <= 0) return;  // the padding of a chunk that k does not fill
    sums.apply(scale_vector(format, scales));
    scales += lanes::ROWS * format.scale_bytes;
  };
  for (int64_t c = 0; c < chunks; ++c) {
    u32x16 words[BITS];
    for (int w = 0; w < BITS; ++w) {
      words[w] = load<u32x16>(codes + 64 * w);
      __builtin_prefetch(codes + 64 * (w + 8 * BITS));
      for (int i = 0; i < IN_WORD; ++i)
        sums.add(decode, words[w] >> uint32_t(BITS * i), x + 2 * (w * IN_WORD + i), stride);
      if (HALVES && (w + 1) % WORDS_PER_HALF == 0) apply_scale();
    }
    const float* at = x + 2 * lanes::direct_pairs(BITS);
    const auto add = [&](u32x16 pair) {
      sums.add(decode, pair, at, stride);
      at += 2;
    };
    emit_left_over<BITS, lanes::direct_pairs(BITS)>(words, add);
    if (!HALVES && (--left == 0 || c + 1 == chunks)) {
      apply_scale();
      left = chunks_per_block;
    }
    codes += 64 * BITS;
    x += lanes::CHUNK;
  }
  for (int m = 0; m < M; ++m) store(totals + m * lanes::ROWS, sums.total[m]);
}

// One tile of one group: where its bytes are, and where its sums go.
struct TileOf {
  const Matmul& call;
  int64_t group, tile, at;

  TileOf(const Matmul& call, int64_t group, int64_t tile)
      : call(call), group(group), tile(tile), at(group * lanes::tiles(call.n) + tile) {}

  const Weight& weight(int which) const { return which ? call.up : call.gate; }
  const uint8_t* codes(int which) const {
    return weight(which).codes + at * lanes::tile_words(call.k, call.format.bits) * 4;
  }
  const uint8_t* scales(int which) const {
    const Format& format = call.format;
    return weight(which).scales + at * lanes::tile_scales(call.k, format.block) * format.scale_bytes;
  }

  // Totals [rows][16] of up to `rows` rows from `begin`; `up` is null where nothing is gated.
  void finish(int64_t begin, int64_t end, int rows, const float* gate, const float* up) const {
    const int64_t column = tile * lanes::ROWS;
    const int count = int(call.n - column < lanes::ROWS ? call.n - column : lanes::ROWS);
    for (int m = 0; m < rows && begin + m < end; ++m)
      finish_row(call, group, begin + m, column, count, gate + m * lanes::ROWS,
                 up ? up + m * lanes::ROWS : nullptr);
  }
};

// Up to M rows of x from `begin`.
template <class Decoder, int M, bool HALVES>
void stream_rows(const Matmul& call, const float* x, int64_t stride, int64_t group, int64_t tile,
                 int64_t begin, int64_t end) {
  const TileOf at(call, group, tile);
  const bool gated = call.activation != NONE;
  const Decoder decode(call.format);
  float totals[2][M * lanes::ROWS];
  for (int w = 0; w < 1 + gated; ++w)
    stream_tile<Decoder, M, HALVES>(decode, call.format, at.codes(w), at.scales(w),
                                    x + begin * stride, stride, call.k, totals[w]);
  at.finish(begin, end, M, totals[0], gated ? totals[1] : nullptr);
}

// Rows as many at a time as there are registers for, and what is left in one pass; rows past the
// end are computed and dropped.
template <class Decoder, bool HALVES>
void stream_group(const Matmul& call, const float* x, int64_t stride, int64_t group, int64_t tile) {
  const int64_t end = call.row_begin[group + 1];
  for (int64_t row = call.row_begin[group]; row < end; row += MOST_ROWS) {
    const int64_t stop = row + MOST_ROWS < end ? row + MOST_ROWS : end;
#if defined(__AVX512F__)
    if (stop - row > 4) {
      stream_rows<Decoder, MOST_ROWS, HALVES>(call, x, stride, group, tile, row, stop);
      continue;
    }
#endif
    if (stop - row > 2)
      stream_rows<Decoder, 4, HALVES>(call, x, stride, group, tile, row, stop);
    else if (stop - row == 2)
      stream_rows<Decoder, 2, HALVES>(call, x, stride, group, tile, row, stop);
    else
      stream_rows<Decoder, 1, HALVES>(call, x, stride, group, tile, row, stop);
  }
}

template <class Decoder>
void stream_decoded(const Matmul& call, const float* x, int64_t stride, int64_t group, int64_t tile) {
  if constexpr (splits_chunks(Decoder::BITS))
    if (call.format.block == 16) return stream_group<Decoder, true>(call, x, stride, group, tile);
  stream_group<Decoder, false>(call, x, stride, group, tile);
}

}  // namespace blockscale::ISA_NAMESPACE
