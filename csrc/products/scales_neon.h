// Block scales of a tile on ARM, decoded to float32 some blocks before the products that read them. Which codes can be
// decoded by arithmetic is then asked, and waited for, once for many blocks.
#pragma once
#include "products/decode.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int SCALES_AHEAD = 32;  // blocks: 2 KB of a first-level cache of 32 or 64

// Codes are SHIFT bits below their place in the upper half of a float32: one instruction widens and shifts by a constant.
template <int SHIFT>
void decode_shifted(const Format& format, const uint8_t* codes, int64_t blocks, float* to) {
  const uint8x16_t low = vdupq_n_u8(uint8_t(format.scale_low));
  const uint16x8_t add = vdupq_n_u16(uint16_t(format.scale_add >> 16)), lower = vdupq_n_u16(0);
  uint8x16_t furthest = vdupq_n_u8(0);
  // A scale of eight bits is all in the upper half of a float32.
  for (int64_t i = 0; i < blocks; ++i) {
    const uint8x16_t code = vld1q_u8(codes + i * cpu_tiles::ROWS);
    if (i % 4 == 0) __builtin_prefetch(codes + (i + SCALES_AHEAD) * cpu_tiles::ROWS);  // a cache line is four blocks
    furthest = vmaxq_u8(furthest, vsubq_u8(code, low));
    const uint16x8_t wide[2] = {vshll_n_u8(vget_low_u8(code), SHIFT), vshll_high_n_u8(code, SHIFT)};
    for (int half = 0; half < 2; ++half) {
      const uint16x8_t upper = vaddq_u16(wide[half], add);
      float* const eight = to + i * cpu_tiles::ROWS + 8 * half;
      vst1q_f32(eight, vreinterpretq_f32_u16(vzip1q_u16(lower, upper)));
      vst1q_f32(eight + 4, vreinterpretq_f32_u16(vzip2q_u16(lower, upper)));
    }
  }
  if (vmaxvq_u8(furthest) >= format.scale_plain)
    for (int64_t i = 0; i < blocks * cpu_tiles::ROWS; ++i) to[i] = format.scale_table[codes[i]];
}

// Scales of one byte, of `blocks` blocks of a tile.
__attribute__((noinline)) void decode_scales(const Format& format, const uint8_t* codes, int64_t blocks, float* to) {
  switch (format.scale_shift) {  // Python asks for no others: blockscale/formats/elements.py
    case 19: return decode_shifted<19 - 16>(format, codes, blocks, to);  // E4M4
    case 20: return decode_shifted<20 - 16>(format, codes, blocks, to);  // UE4M3
    default: return decode_shifted<23 - 16>(format, codes, blocks, to);  // E8M0
  }
}

// visit(scales) for every block of a tile, with one scale to each row.
template <class Visit>
ALWAYS_INLINE void for_each_block(const Format& format, const uint8_t* scales, int64_t blocks, const Visit& visit) {
  const auto visit_all = [&](const float* floats, int64_t count) INLINED {
    for (int64_t i = 0; i < count; ++i, floats += cpu_tiles::ROWS) visit(floats);
  };
  if (format.scale_bytes == 4) return visit_all(reinterpret_cast<const float*>(scales), blocks);
  float floats[SCALES_AHEAD * cpu_tiles::ROWS];
  for (int64_t first = 0; first < blocks; first += SCALES_AHEAD) {
    const int64_t count = blocks - first < SCALES_AHEAD ? blocks - first : SCALES_AHEAD;
    decode_scales(format, scales + first * cpu_tiles::ROWS, count, floats);
    visit_all(floats, count);
  }
}

}  // namespace blockscale::ISA_NAMESPACE
