#pragma once
#include "isa/vec.h"

namespace blockscale::ISA_NAMESPACE {

// To two units in the last place, with float32's infinities and NaN.
ALWAYS_INLINE f32x16 exponential(f32x16 x) {
  x = select(x > 105.0f, splat(105.0f), select(x < -105.0f, splat(-105.0f), x));  // the results are infinite, and zero
  // x = n ln 2 + r. A sum with 1.5 * 2^23 is n in its lowest bits.
  const f32x16 integral = splat(0x1.8p23f), sum = x * 0x1.715476p0f + integral, n = sum - integral;
  const f32x16 r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts: n times the first is exact
  // The eighth power, the first that is left out, is below 2^-27 of the result.
  f32x16 power = r * (1.0f / 5040) + splat(1.0f / 720);
  power = power * r + splat(1.0f / 120);
  power = power * r + splat(1.0f / 24);
  power = power * r + splat(1.0f / 6);
  power = power * r + splat(0.5f);
  power = power * r + splat(1.0f);
  power = power * r + splat(1.0f);
  // 2^n in two factors, each of which is a normal number.
  const i32x16 whole = bits_as<i32x16>(as_bits(sum) - 0x4b400000u), half = whole >> 1;
  return power * bits_as<f32x16>((half + 127) << 23) * bits_as<f32x16>((whole - half + 127) << 23);
}

}  // namespace blockscale::ISA_NAMESPACE
