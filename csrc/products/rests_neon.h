// What slices (slices_neon.h) left out of a few chunks of x, as float32 products.
#pragma once
#include "products/kernels.h"
#include "products/stream.h"

namespace blockscale::ISA_NAMESPACE {

template <class Decoder, int M, bool HALVES>
void add_rests_of(const Decoder& decode, const Format& format, const uint8_t* codes, const uint8_t* scales,
                  const SliceRows& x, int64_t k, float* totals) {
  Format of_chunk = format;  // which may be part of a block
  if (format.block > cpu_tiles::CHUNK) of_chunk.block = cpu_tiles::CHUNK;
  for (int64_t i = 0; i < x.rest_count; ++i) {
    const int64_t chunk = x.rests[i].chunk, first = chunk * cpu_tiles::CHUNK, left = k - first;
    float sums[M * cpu_tiles::ROWS];
    stream_tile<Decoder, M, HALVES>(decode, of_chunk, codes + chunk * 64 * Decoder::BITS,
                                    scales + first / format.block * cpu_tiles::ROWS * format.scale_bytes, x.rests[i].x,
                                    left < cpu_tiles::CHUNK ? left : cpu_tiles::CHUNK, sums);
    for (int j = 0; j < M * cpu_tiles::ROWS; ++j) totals[j] += sums[j];
  }
}

void add_rests(const Format& format, const uint8_t* codes, const uint8_t* scales, const SliceRows& x, int64_t k,
               int rows, float* totals) {
  with_rows<SLICE_ROWS>(rows, [&](auto m) {
    constexpr int M = decltype(m)::value;
    with_product_decoder(format, [&](const auto& decode) {
      using Decoder = std::decay_t<decltype(decode)>;
      if constexpr (Decoder::BITS == 4)
        if (format.block == 16) return add_rests_of<Decoder, M, true>(decode, format, codes, scales, x, k, totals);
      add_rests_of<Decoder, M, false>(decode, format, codes, scales, x, k, totals);
    });
  });
}

}  // namespace blockscale::ISA_NAMESPACE
