// The functions of kernels.h that every instruction set has.
#pragma once
#include "kernels.h"
#include "panel.h"
#include "stream.h"

namespace blockscale::ISA_NAMESPACE {

void stream(const Matmul& call, const float* x, int64_t stride, int64_t group, int64_t tile) {
  const Format& format = call.format;
  if (format.decoder == E4M3) return stream_decoded<E4M3Decoder>(call, x, stride, group, tile);
  if (format.decoder == E5M2) return stream_decoded<E5M2Decoder>(call, x, stride, group, tile);
  switch (format.bits) {  // Python asks for no others: blockscale/kernels/matmul/cpu.py
    case 2: return stream_decoded<TableDecoder<2>>(call, x, stride, group, tile);
    case 3: return stream_decoded<TableDecoder<3>>(call, x, stride, group, tile);
    case 4: return stream_decoded<TableDecoder<4>>(call, x, stride, group, tile);
    case 5: return stream_decoded<TableDecoder<5>>(call, x, stride, group, tile);
    default: return stream_decoded<TableDecoder<6>>(call, x, stride, group, tile);
  }
}

// Columns of one tile into out[k][stride].
void decode(const Panel& call, int64_t tile) {
  const Format& format = call.format;
  const uint8_t* codes = call.codes + tile * lanes::tile_words(call.k, format.bits) * 4;
  const uint8_t* scales =
      call.scales + tile * lanes::tile_scales(call.k, format.block) * format.scale_bytes;
  float* out = call.out + tile * lanes::ROWS;
  const auto write = [&](int64_t k, f32x16 even, f32x16 odd) {
    if (k < call.k) store(out + k * call.stride, even);
    if (k + 1 < call.k) store(out + (k + 1) * call.stride, odd);
  };
  with_decoder(format, [&](const auto& decoder) {
    walk_tile(decoder, format, codes, scales, call.k, write, [](f32x16) {});
  });
}

}  // namespace blockscale::ISA_NAMESPACE
