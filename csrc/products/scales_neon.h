// Block scales of a tile on ARM, decoded to float32 some blocks before the products that read them. Which codes can be
// decoded by arithmetic is then asked, and waited for, once for many blocks.
#pragma once
#include "products/decode.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int SCALES_AHEAD = 32;  // blocks: 2 KB of a first-level cache of 32 or 64

// How far the codes of scales are shifted into the upper half of a float32: one instruction widens and shifts by a
// constant.
template <int SHIFT>
struct ShiftedBy {
  ALWAYS_INLINE uint16x8_t low(uint8x16_t codes) const { return vshll_n_u8(vget_low_u8(codes), SHIFT); }
  ALWAYS_INLINE uint16x8_t high(uint8x16_t codes) const { return vshll_high_n_u8(codes, SHIFT); }
};

struct ShiftedByAny {
  int16x8_t shift;
  ALWAYS_INLINE uint16x8_t low(uint8x16_t codes) const { return vshlq_u16(vmovl_u8(vget_low_u8(codes)), shift); }
  ALWAYS_INLINE uint16x8_t high(uint8x16_t codes) const { return vshlq_u16(vmovl_high_u8(codes), shift); }
};

template <class Shifted>
void decode_shifted(const Shifted shifted, const Format& format, const uint8_t* codes, int64_t blocks, float* to) {
  const uint8x16_t low = vdupq_n_u8(uint8_t(format.scale_low));
  const uint16x8_t add = vdupq_n_u16(uint16_t(format.scale_add >> 16)), lower = vdupq_n_u16(0);
  uint8x16_t furthest = vdupq_n_u8(0);
  // A scale of eight bits is all in the upper half of a float32.
  for (int64_t i = 0; i < blocks; ++i, codes += cpu_tiles::ROWS, to += cpu_tiles::ROWS) {
    const uint8x16_t code = vld1q_u8(codes);
    if (i % 4 == 0) __builtin_prefetch(codes + SCALES_AHEAD * cpu_tiles::ROWS);  // a cache line is four blocks
    furthest = vmaxq_u8(furthest, vsubq_u8(code, low));
    const uint16x8_t upper[2] = {vaddq_u16(shifted.low(code), add), vaddq_u16(shifted.high(code), add)};
    for (int half = 0; half < 2; ++half) {
      vst1q_f32(to + 8 * half, vreinterpretq_f32_u16(vzip1q_u16(lower, upper[half])));
      vst1q_f32(to + 8 * half + 4, vreinterpretq_f32_u16(vzip2q_u16(lower, upper[half])));
    }
  }
  if (vmaxvq_u8(furthest) >= format.scale_plain)
    for (int64_t i = -blocks * cpu_tiles::ROWS; i < 0; ++i) to[i] = format.scale_table[codes[i]];
}

// Scales of one byte, of `blocks` blocks of a tile.
__attribute__((noinline)) void decode_scales(const Format& format, const uint8_t* codes, int64_t blocks, float* to) {
  const int shift = format.scale_shift - 16;
  switch (shift) {
    case 3: return decode_shifted(ShiftedBy<3>{}, format, codes, blocks, to);  // E4M4
    case 4: return decode_shifted(ShiftedBy<4>{}, format, codes, blocks, to);  // E4M3
    case 7: return decode_shifted(ShiftedBy<7>{}, format, codes, blocks, to);  // E8M0
    default: return decode_shifted(ShiftedByAny{vdupq_n_s16(int16_t(shift))}, format, codes, blocks, to);
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
