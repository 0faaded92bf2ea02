// float32 to and from the two short floats, one rounding to nearest even, by integer arithmetic: the
// same bits on every machine and whatever the thread does with subnormals.
//
// Functions here are static: each translation unit has its own, compiled for its instruction set.
#pragma once
#include <cstdint>
#include <cstring>

#include "abi.h"

namespace blockscale {

static inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // NaN is canonical
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float from_bfloat16(uint16_t value) { return bits_to_float(uint32_t(value) << 16); }

static inline uint16_t to_float16(float value) {
  const uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude >= 0x38800000u) {                      // a normal float16
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude < 0x33000000u) return sign;  // below half of the smallest subnormal
  const int shift = 126 - int(magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t kept = mantissa >> shift, lost = mantissa & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1);
  return uint16_t(sign | (kept + (lost > half || (lost == half && (kept & 1u)))));
}

static inline float from_float16(uint16_t value) {
  const uint32_t sign = uint32_t(value & 0x8000u) << 16, magnitude = value & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_to_float(sign | ((magnitude << 13) + 0x38000000u));
  const float tiny = float(magnitude) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

static inline float read_float(const void* from, int64_t index, int32_t dtype) {
  if (dtype == FLOAT32) return static_cast<const float*>(from)[index];
  const uint16_t bits = static_cast<const uint16_t*>(from)[index];
  return dtype == BFLOAT16 ? from_bfloat16(bits) : from_float16(bits);
}

}  // namespace blockscale
