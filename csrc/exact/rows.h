// Rows of float32, bfloat16 or float16, read as float32 and written with one rounding. The loops have
// no branches inside, so that they become vector code.
#pragma once
#include <cstring>

#include "exact/small_float.h"

namespace blockscale::ISA_NAMESPACE {

constexpr uint32_t INFINITE_BITS = 0x7f800000u, NAN_BITS = 0x7fc00000u;

inline uint32_t magnitude_bits(float x) { return float_to_bits(x) & 0x7fffffffu; }
inline bool is_nan(float x) { return magnitude_bits(x) > INFINITE_BITS; }

inline int64_t bytes_of(int32_t dtype) { return dtype == FLOAT32 ? 4 : 2; }

inline float widen_float16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu, sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t tiny = float_to_bits(float(int32_t(magnitude)) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + 0x38000000u;
  const uint32_t special = (magnitude << 13) + 0x70000000u;
  const uint32_t finite = magnitude < 0x400u ? tiny : normal;
  return bits_to_float(sign | (magnitude < 0x7c00u ? finite : special));
}

// `count` numbers, `stride` apart.
inline void read_numbers(const void* from, int32_t dtype, int64_t count, int64_t stride, float* to) {
  const auto* wide = static_cast<const float*>(from);
  const auto* narrow = static_cast<const uint16_t*>(from);
  const auto read = [&](auto at) {
    if (dtype == FLOAT32)
      for (int64_t i = 0; i < count; ++i) to[i] = wide[at(i)];
    else if (dtype == BFLOAT16)
      for (int64_t i = 0; i < count; ++i) to[i] = from_bfloat16(narrow[at(i)]);
    else
      for (int64_t i = 0; i < count; ++i) to[i] = widen_float16(narrow[at(i)]);
  };
  stride == 1 ? read([](int64_t i) { return i; }) : read([&](int64_t i) { return i * stride; });
}

// Adjacent numbers; NaN is canonical.
inline void write_numbers(const float* from, int32_t dtype, int64_t count, void* to) {
  auto* wide = static_cast<uint32_t*>(to);
  auto* narrow = static_cast<uint16_t*>(to);
  // 2^16 has the code of infinity, and so have the numbers that round to it.
  const Rounding to_half(SmallFloat{10, 15, 0x1p16f, 1});
  if (dtype == FLOAT32)
    for (int64_t i = 0; i < count; ++i)
      wide[i] = is_nan(from[i]) ? NAN_BITS : float_to_bits(from[i]);
  else if (dtype == BFLOAT16)
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = float_to_bits(from[i]);
      const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
      narrow[i] = uint16_t((is_nan(from[i]) ? NAN_BITS : rounded) >> 16);
    }
  else
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = float_to_bits(from[i]), sign = bits >> 16 & 0x8000u;
      const uint32_t rounded = sign | to_half.code(bits_to_float(bits & 0x7fffffffu));
      narrow[i] = uint16_t(is_nan(from[i]) ? 0x7e00u : rounded);
    }
}

}  // namespace blockscale::ISA_NAMESPACE
