// The elements of a weight as bytes, looked up four to a lane.
#pragma once
#include "isa/vec.h"

namespace blockscale::ISA_NAMESPACE {

class ByteTable {
 public:
  explicit ByteTable(const void* bytes) {  // 16
#if defined(__AVX512BW__)
    entries_ = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
    entries_ = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)bytes));
#else
    std::memcpy(entries_, bytes, sizeof entries_);
#endif
  }

  // Of the codes `step` places up in each byte of a word.
  template <int BITS>
  ALWAYS_INLINE u32x16 look_up(const u32x16& word, int step) const {
    return (*this)[(word >> uint32_t(BITS * step)) & ((1u << BITS) - 1) * 0x01010101u];
  }

 private:
#if defined(__AVX512BW__)
  __m512i entries_;
  ALWAYS_INLINE u32x16 operator[](const u32x16& codes) const {
    return (u32x16)_mm512_shuffle_epi8(entries_, (__m512i)codes);
  }
#elif defined(__AVX2__)
  __m256i entries_;
  ALWAYS_INLINE u32x16 operator[](const u32x16& codes) const {
    return by_parts<uint32_t>(
        [this](auto part) { return _mm256_shuffle_epi8(entries_, (__m256i)part); }, codes);
  }
#else
  uint8_t entries_[16];
  u32x16 operator[](const u32x16& codes) const {
    uint8_t in[64];
    store(in, codes);
    for (uint8_t& byte : in) byte = entries_[byte];
    return load<u32x16>(in);
  }
#endif
};

}  // namespace blockscale::ISA_NAMESPACE
