// Stages of decoded weights on ARM: a quad of rows at a time (isa/neon.h).
#pragma once
#include "products/decoders.h"
#include "products/stage.h"

namespace blockscale::ISA_NAMESPACE {

// A quad's chunk times its scales: to[column][PITCH] gets four rows.
template <int PITCH, bool CAREFUL, class Decoder>
ALWAYS_INLINE void decode_quad(const Decoder& decode, const uint8_t* quad, float32x4_t first, float32x4_t second,
                               float* to) {
  for_each_column<0, GROUPS, CAREFUL>(decode, quad, [&](auto column, float32x4_t rows) INLINED {
    vst1q_f32(to + column * PITCH, rows * (column < cpu_tiles::CHUNK / 2 ? first : second));
  });
}

// Decodes `chunks` chunks from chunk `first` of a tile: to[k][PITCH] gets sixteen rows of column k, with their scales,
// divided by the decoder's GAIN.
template <int PITCH, class Decoder>
void decode_columns(const Decoder& decode, const TileOf& at, int which, int64_t first, int64_t chunks, float* to) {
  const Format& format = at.call.format;
  const int64_t start = first * cpu_tiles::CHUNK;
  const uint8_t* codes = at.codes(which) + first * Decoder::BITS * 64;
  ChunkScales scales(format, at.scales(which) + start / format.block * cpu_tiles::ROWS * format.scale_bytes,
                     at.call.k - start);
  for (int64_t c = 0; c < chunks; ++c, codes += 64 * Decoder::BITS, to += cpu_tiles::CHUNK * PITCH) {
    prefetch<Decoder::BITS>(codes);
    scales.advance();
    for (int q = 0; q < QUADS; ++q) {
      const uint8_t* quad = codes + 16 * q;
      const auto one = (float32x4_t)scales.first.part[q], two = (float32x4_t)scales.second.part[q];
      with_care<GROUPS, 1>(decode, quad, [&](auto careful) INLINED {
        decode_quad<PITCH, decltype(careful)::value>(decode, quad, one, two, to + q * QUAD);
      });
    }
  }
}

// Of sums whose weights were divided by it. It goes to them and not to scales, the largest of which have no room for it.
template <class Decoder>
void apply_gain(float* sums, int64_t count) {
  if constexpr (Decoder::GAIN != 1)
    for (int64_t i = 0; i < count; ++i) sums[i] *= Decoder::GAIN;
}

// sums[4][16] += x [depth][4] @ stage [depth][16]: the four rows of x are the lanes of a register.
inline void multiply_four_rows(const float* x, const float* stage, int64_t depth, float* sums) {
  constexpr int ROWS = 4;
  float32x4_t sum[ROWS][QUADS];
  unrolled<ROWS>([&](auto m) INLINED {
    unrolled<QUADS>([&](auto q) INLINED { sum[m][q] = vld1q_f32(sums + (m * QUADS + q) * QUAD); });
  });
  for (int64_t k = 0; k < depth; ++k, stage += cpu_tiles::ROWS, x += ROWS) {
    const float32x4_t rows = vld1q_f32(x);
    unrolled<QUADS>([&](auto q) INLINED {
      const float32x4_t weight = vld1q_f32(stage + q * QUAD);
      unrolled<ROWS>([&](auto m) INLINED {
        constexpr int lane = m;
        sum[m][q] = vfmaq_laneq_f32(sum[m][q], weight, rows, lane);
      });
    });
  }
  unrolled<ROWS>([&](auto m) INLINED {
    unrolled<QUADS>([&](auto q) INLINED { vst1q_f32(sums + (m * QUADS + q) * QUAD, sum[m][q]); });
  });
}

}  // namespace blockscale::ISA_NAMESPACE
