// Block scales of a tile on ARM, decoded to float32 some blocks before the products that read them. Which codes can be
// decoded by arithmetic is then asked, and waited for, once for many blocks.
#pragma once
#include "products/decode.h"

namespace blockscale::ISA_NAMESPACE {

class ScalesAhead {
 public:
  ScalesAhead(const Format& format, const uint8_t* scales, int64_t blocks)
      : format_(format), codes_(scales), blocks_(blocks) {}

  // visit(scales) for every block, with one scale to each row of the tile.
  template <class Visit>
  ALWAYS_INLINE void for_each(const Visit& visit) {
    while (blocks_ > 0) {
      const int64_t count = format_.scale_bytes == 4 || blocks_ < AHEAD ? blocks_ : AHEAD;
      const float* scales = format_.scale_bytes == 4 ? reinterpret_cast<const float*>(codes_) : decode(count);
      for (int64_t i = 0; i < count; ++i, scales += cpu_tiles::ROWS) visit(scales);
      blocks_ -= count;
    }
  }

 private:
  static constexpr int AHEAD = 32;  // blocks: 2 KB of a first-level cache of 32 or 64

  __attribute__((noinline)) const float* decode(int64_t count) {
    const uint8x16_t low = vdupq_n_u8(uint8_t(format_.scale_low)), zero = vdupq_n_u8(0);
    const int16x8_t shift = vdupq_n_s16(int16_t(format_.scale_shift - 16));
    const uint16x8_t add = vdupq_n_u16(uint16_t(format_.scale_add >> 16)), lower = vdupq_n_u16(0);
    uint8x16_t furthest = zero;
    const uint8_t* const begin = codes_;
    float* to = floats_;
    // A scale of eight bits is all in the upper half of a float32.
    for (int64_t i = 0; i < count; ++i, codes_ += cpu_tiles::ROWS, to += cpu_tiles::ROWS) {
      const uint8x16_t codes = vld1q_u8(codes_);
      if (i % 4 == 0) __builtin_prefetch(codes_ + AHEAD * cpu_tiles::ROWS);  // a cache line is four blocks
      furthest = vmaxq_u8(furthest, vsubq_u8(codes, low));
      const uint8x16_t wide[2] = {vzip1q_u8(codes, zero), vzip2q_u8(codes, zero)};
      for (int half = 0; half < 2; ++half) {
        const uint16x8_t upper = vaddq_u16(vshlq_u16(vreinterpretq_u16_u8(wide[half]), shift), add);
        vst1q_f32(to + 8 * half, vreinterpretq_f32_u16(vzip1q_u16(lower, upper)));
        vst1q_f32(to + 8 * half + 4, vreinterpretq_f32_u16(vzip2q_u16(lower, upper)));
      }
    }
    if (vmaxvq_u8(furthest) >= format_.scale_plain)
      for (int64_t i = 0; i < count * cpu_tiles::ROWS; ++i) floats_[i] = format_.scale_table[begin[i]];
    return floats_;
  }

  const Format& format_;
  const uint8_t* codes_;
  int64_t blocks_;
  float floats_[AHEAD * cpu_tiles::ROWS];
};

}  // namespace blockscale::ISA_NAMESPACE
