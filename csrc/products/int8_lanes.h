// A row tile of int8 x by a tile of a weight, sixteen rows of the weight in sixteen lanes.
#pragma once
#include "isa/byte_table.h"
#include "products/decode.h"
#include "products/kernels.h"

namespace blockscale::ISA_NAMESPACE {

// lanes += four products of bytes, none of them -128: sums of two products fit 16 bits. VNNI wants one
// side unsigned: there the weights are raised by 128, and a sum starts at -128 times that of its x.
ALWAYS_INLINE i32x16 dot4(const i32x16& sums, const u32x16& weights, uint32_t x) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(int(x)));
#elif defined(__AVX2__)
  const __m256i four = _mm256_set1_epi32(int(x)), ones = _mm256_set1_epi16(1);
  return by_parts<int32_t>(
      [four, ones](auto sum, auto bytes) {
        const auto w = (__m256i)bytes;
        const __m256i signed_x = _mm256_sign_epi8(four, w);  // with the signs of the weights
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);
        return _mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, ones));
      },
      sums, weights);
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

// totals[M][16] of one tile and one row tile. Loops over rows are unrolled early: GCC keeps the sums of
// others in memory.
template <int BITS, int M, int RUN>
void int8_tile(const IntegerTable& integers, const Format& format, const uint8_t* codes,
               const uint8_t* scales, Int8Rows x, int64_t k, float* totals) {
  constexpr int WORDS = BITS * RUN / cpu_tiles::CHUNK, STEPS = 8 / BITS;
#if defined(__AVX512VNNI__)
  const ByteTable table(integers.raised);
#else
  const ByteTable table(integers.integers);
#endif
  const int64_t blocks = k / format.block, runs = RUN == 16 ? 1 : format.block / RUN;
  f32x16 total[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) total[m] = f32x16{};
  for (int64_t block = 0; block < blocks; ++block, scales += cpu_tiles::ROWS * format.scale_bytes) {
    const f32x16 scale = scale_vector(format, scales);
    prefetch_scales(scales);
    for (int64_t s = 0; s < runs; ++s, x.starts += M, x.scales += M) {
      i32x16 sums[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m] = splat(x.starts[m]);
      for (int w = 0; w < WORDS; ++w, codes += 64) {
        const u32x16 word = load<u32x16>(codes);
        prefetch<1>(codes);
        for (int step = 0; step < STEPS; ++step, x.words += M) {
          const u32x16 weights = table.look_up<BITS>(word, step);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) sums[m] = dot4(sums[m], weights, x.words[m]);
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[m] += to_floats(sums[m]) * (scale * x.scales[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) store(totals + m * cpu_tiles::ROWS, total[m] * integers.unit);
}

}  // namespace blockscale::ISA_NAMESPACE
