// Activations in int8: dot products of bytes, four to a lane, for codes of 2 or 4 bits.
//
// A byte look-up turns four codes of a lane into four integers; x, rounded to int8 in blocks of 32, is
// arranged to meet them (int8_rows.h). A segment is the part of a chunk that shares one scale of the
// weight, 16 or 32 long: sums are exact inside it, and float32 across segments.
#pragma once
#include "decode.h"
#include "kernels.h"
#include "tile.h"

namespace blockscale::ISA_NAMESPACE {

// lanes += four products of bytes. x86 wants one side unsigned: there the weights are stored 128
// higher, and a sum starts at -128 times the sum of its x.
inline i32x16 dot4(i32x16 sums, u32x16 weights, uint32_t x) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(int(x)));
#else
  int8_t w[64], four[4];
  int32_t sum[16];
  store(w, weights);
  store(sum, sums);
  std::memcpy(four, &x, 4);
  for (int lane = 0; lane < 16; ++lane)
    for (int i = 0; i < 4; ++i) sum[lane] += int(w[4 * lane + i]) * int(four[i]);
  return load<i32x16>(sum);
#endif
}

// An IntegerTable, looked up byte by byte.
struct ByteTable {
#if defined(__AVX512VNNI__)
  __m512i wide;
  explicit ByteTable(const uint8_t* bytes)
      : wide(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)bytes))) {}
  u32x16 operator[](u32x16 codes) const {
    return (u32x16)_mm512_shuffle_epi8(wide, (__m512i)codes);
  }
#else
  const uint8_t* bytes;
  explicit ByteTable(const uint8_t* bytes) : bytes(bytes) {}
  u32x16 operator[](u32x16 codes) const {
    uint8_t in[64];
    store(in, codes);
    for (uint8_t& byte : in) byte = bytes[byte];
    return load<u32x16>(in);
  }
#endif
};

template <int BITS, int M, int SEGMENT>
void int8_tile(const IntegerTable& integers, const Format& format, const uint8_t* codes,
               const uint8_t* scales, const Int8Rows& x, int64_t row, int64_t k, float* totals) {
  const ByteTable table(integers.bytes);
  constexpr int WORDS = BITS * SEGMENT / lanes::CHUNK, STEPS = 8 / BITS;
  const uint32_t mask = ((1u << BITS) - 1) * 0x01010101u;
  f32x16 total[M] = {};
  const int64_t segments = k / SEGMENT;
  const int64_t scale_every = format.block / SEGMENT;
  f32x16 scale{};
  for (int64_t s = 0; s < segments; ++s) {
    if (s % scale_every == 0) {
      scale = scale_vector(format, scales);
      scales += lanes::ROWS * format.scale_bytes;
    }
    i32x16 sums[M];
    for (int m = 0; m < M; ++m) sums[m] = splat(x.starts[(row + m) * x.segment_stride + s]);
    for (int w = 0; w < WORDS; ++w, codes += 64) {
      const u32x16 word = load<u32x16>(codes);
      prefetch<1>(codes);
      for (int step = 0; step < STEPS; ++step) {
        const u32x16 weights = table[(word >> uint32_t(BITS * step)) & mask];
        const int64_t at = s * (SEGMENT / 4) + w * STEPS + step;
        for (int m = 0; m < M; ++m)
          sums[m] = dot4(sums[m], weights, x.words[(row + m) * x.word_stride + at]);
      }
    }
    for (int m = 0; m < M; ++m)
      total[m] += to_floats(sums[m]) *
                  (scale * x.scales[(row + m) * x.segment_stride + s]);
  }
  for (int m = 0; m < M; ++m) store(totals + m * lanes::ROWS, total[m] * integers.unit);
}

// One tile of one group, up to M rows of x from `begin`.
template <int BITS, int M, int SEGMENT>
void int8_rows(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
               int64_t tile, int64_t begin, int64_t end) {
  const TileOf at(call, group, tile);
  const bool gated = call.activation != NONE;
  float totals[2][M * lanes::ROWS];
  for (int w = 0; w < 1 + gated; ++w)
    int8_tile<BITS, M, SEGMENT>(tables[w], call.format, at.codes(w), at.scales(w), x, begin, call.k,
                                totals[w]);
  at.finish(begin, end, M, totals[0], gated ? totals[1] : nullptr);
}

template <int BITS, int SEGMENT>
void int8_group(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                int64_t tile) {
  const int64_t end = call.row_begin[group + 1];
  for (int64_t row = call.row_begin[group]; row < end; row += 4) {
    if (end - row > 2)
      int8_rows<BITS, 4, SEGMENT>(call, tables, x, group, tile, row, end);
    else if (end - row == 2)
      int8_rows<BITS, 2, SEGMENT>(call, tables, x, group, tile, row, end);
    else
      int8_rows<BITS, 1, SEGMENT>(call, tables, x, group, tile, row, end);
  }
}

// tables: of gate and up.
void int8(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
          int64_t tile) {
  if (call.format.block == 16) {
    if (call.format.bits == 4) return int8_group<4, 16>(call, tables, x, group, tile);
    return int8_group<2, 16>(call, tables, x, group, tile);
  }
  if (call.format.bits == 4) return int8_group<4, 32>(call, tables, x, group, tile);
  int8_group<2, 32>(call, tables, x, group, tile);
}

}  // namespace blockscale::ISA_NAMESPACE
