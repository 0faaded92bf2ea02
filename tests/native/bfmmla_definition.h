// What a product by `bfmmla` is, bit for bit: Arm's rules of its sums (FPCR.EBF = 0) in portable code.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace definition {

// a + b rounded to odd: towards zero, and the last bit set where something was lost. What is below 2^-126 becomes zero.
inline float add_to_odd(float a, float b) {
  double sum = double(a) + double(b);
  const double of_b = sum - double(a), lost = (double(a) - (sum - of_b)) + (double(b) - of_b);
  uint64_t bits;
  std::memcpy(&bits, &sum, 8);
  if (lost != 0 && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : -1;
  const uint64_t below = (uint64_t(1) << 29) - 1;  // bits that float32 has no room for
  if (bits & below) bits = (bits & ~below) | (below + 1);
  std::memcpy(&sum, &bits, 8);
  return std::fabs(sum) < 0x1p-126 ? 0.0f : float(sum);
}

// Of bfloat16 numbers: exact, but that subnormal ones and what is below 2^-126 are zero.
inline float product(float w, float x) {
  const double exact = double(w) * double(x);
  return std::fabs(x) < 0x1p-126f || std::fabs(exact) < 0x1p-126 ? 0.0f : float(exact);
}

// Two products and the sum so far.
inline float add_pair(float sum, const float* w, const float* x) {
  return add_to_odd(sum, add_to_odd(product(w[0], x[0]), product(w[1], x[1])));
}

}  // namespace definition
