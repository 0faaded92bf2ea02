// The scale of a block, from its amax alone: blockscale/numerics/scales.py, a block at a time.
#pragma once
#include "abi.h"
#include "exact/small_float.h"

namespace blockscale::ISA_NAMESPACE {

struct Scale {
  float value;
  uint8_t code;  // of scales of one byte
};

class ScaleChooser {
 public:
  explicit ScaleChooser(const Quantize& call)
      : rule_(call.rule), format_(call.format), rounding_(call.rule.scale) {}

  // The scale that maps amax * stretch to the largest element.
  Scale from_amax(float amax, double stretch, float tensor_scale) const {
    if (rule_.power_of_two) return from_code(power_of_two(amax));
    const float wanted = float(amax * stretch / rule_.element_max) / tensor_scale;
    if (format_.scale_bytes == 4) return {wanted, 0};
    const float held = amax > 0 && wanted < rule_.least ? rule_.least : wanted;
    return from_code(rule_.scale.carries ? rounding_.code(held) : rounding_.code_in_binade(held));
  }

  // A scale some codes away, or the last one in that direction.
  Scale moved(const Scale& scale, int steps) const {
    const int lowest = rule_.power_of_two ? 0 : 1, code = scale.code + steps;
    return from_code(uint32_t(code < lowest ? lowest : code > rule_.max_code ? rule_.max_code : code));
  }

 private:
  Scale from_code(uint32_t code) const { return {format_.scale_table[code], uint8_t(code)}; }

  uint32_t power_of_two(double amax) const {
    uint64_t bits;
    std::memcpy(&bits, &amax, 8);
    const uint64_t fraction_bits = (bits & 0xfffffffffffffu) | uint64_t(1023) << 52;
    double fraction;
    std::memcpy(&fraction, &fraction_bits, 8);
    const bool carries = amax > 0 && fraction >= rule_.carry_from;
    // With a larger exponent the largest code would decode to Inf: such an amax saturates instead.
    const int bias = rule_.scale.bias, highest = 127 - rule_.max_exponent;
    const int exponent = int(bits >> 52) - 1023 + carries - rule_.max_exponent;
    const int code = (exponent < highest ? exponent : highest) + bias;
    return uint32_t(code > 0 ? code : 0);
  }

  const ScaleRule& rule_;
  const Format& format_;
  Rounding rounding_;
};

}  // namespace blockscale::ISA_NAMESPACE
