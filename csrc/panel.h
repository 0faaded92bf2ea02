// Tiles decoded with their scales, for those who multiply them elsewhere: column after column into
// float32 for a matrix library, or pair after pair for AMX.
#pragma once
#include "decode.h"
#include "stream.h"

namespace blockscale::ISA_NAMESPACE {

// Walks a tile in the order of k. visit(k, even, odd) gets sixteen rows of columns k and k + 1, with
// their scales applied; on_scale(scale) sees each vector of scales once.
template <class Decoder, class Visit, class OnScale>
inline void walk_tile(const Decoder& decode, const Format& format, const uint8_t* codes,
                      const uint8_t* scales, int64_t k, Visit visit, OnScale on_scale) {
  constexpr int BITS = Decoder::BITS, IN_WORD = lanes::codes_per_half(BITS);
  f32x16 scale{};
  int64_t at = 0, next_block = 0;
  const auto emit = [&](u32x16 pair) {
    if (at == next_block && at < k) {
      scale = scale_vector(format, scales);
      on_scale(scale);
      scales += lanes::ROWS * format.scale_bytes;
      next_block += format.block;
    }
    visit(at, decode(pair) * scale, decode(pair >> 16u) * scale);
    at += 2;
  };
  for (int64_t c = 0; c < lanes::chunks(k); ++c, codes += 64 * BITS) {
    u32x16 words[BITS];
    for (int w = 0; w < BITS; ++w) {
      words[w] = load<u32x16>(codes + 64 * w);
      for (int i = 0; i < IN_WORD; ++i) emit(words[w] >> uint32_t(BITS * i));
    }
    emit_left_over<BITS, lanes::direct_pairs(BITS)>(words, emit);
  }
}

// Calls work with the decoder that a format names.
template <class Work>
inline void with_decoder(const Format& format, Work work) {
  if (format.decoder == E4M3) return work(E4M3Decoder(format));
  if (format.decoder == E5M2) return work(E5M2Decoder(format));
  switch (format.bits) {
    case 2: return work(TableDecoder<2>(format));
    case 3: return work(TableDecoder<3>(format));
    case 4: return work(TableDecoder<4>(format));
    case 5: return work(TableDecoder<5>(format));
    case 6: return work(TableDecoder<6>(format));
    case 7: return work(TableDecoder<7>(format));
    default: return work(TableDecoder<8>(format));
  }
}

}  // namespace blockscale::ISA_NAMESPACE
