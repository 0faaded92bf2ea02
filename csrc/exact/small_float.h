// Rounding to a small float, to nearest with ties to the even code, by arithmetic on bits: the same
// few operations for every width, without branches, so that loops over them become vector code.
#pragma once
#include "abi.h"
#include "convert.h"

namespace blockscale::ISA_NAMESPACE {

class Rounding {
 public:
  explicit Rounding(const SmallFloat& to)
      : mantissa_(uint32_t(to.mantissa)),
        shift_(uint32_t(23 - to.mantissa)),
        below_half_((1u << (22 - to.mantissa)) - 1),
        offset_(uint32_t(127 - to.bias) << 23),
        largest_(float_to_bits(to.largest)),
        first_normal_(uint32_t(128 - to.bias) << 23),
        // Added to a smaller number, it leaves the sum no bits below a subnormal's last one.
        aligner_(bits_to_float(uint32_t(127 + 24 - to.bias - to.mantissa) << 23)) {}

  // The code of a magnitude. Infinity is larger than the largest; there is no NaN.
  uint32_t code(float magnitude) const {
    const uint32_t bits = clamp(magnitude), tiny = bits_of_aligned(bits) - float_to_bits(aligner_);
    return bits < first_normal_ ? tiny : carried(bits) >> shift_;
  }

  // Of a float that rounds inside a binade only: a mantissa that is all ones does not carry.
  uint32_t code_in_binade(float magnitude) const {
    const uint32_t bits = clamp(magnitude), rounded = code(magnitude);
    const uint32_t exponent = bits < first_normal_ ? 0 : (bits - offset_) >> 23;
    const uint32_t top = (exponent + 1) << mantissa_;
    return rounded < top ? rounded : top - 1;
  }

  // What that code decodes to.
  float nearest(float magnitude) const {
    const uint32_t bits = clamp(magnitude);
    const float tiny = bits_to_float(bits_of_aligned(bits)) - aligner_;
    const float normal = bits_to_float((carried(bits) >> shift_ << shift_) + offset_);
    return bits < first_normal_ ? tiny : normal;
  }

 private:
  uint32_t clamp(float magnitude) const {
    const uint32_t bits = float_to_bits(magnitude);
    return bits < largest_ ? bits : largest_;
  }
  uint32_t bits_of_aligned(uint32_t bits) const {
    return float_to_bits(bits_to_float(bits) + aligner_);
  }
  // With the small float's bias, and with half of its last place added, a little less for even codes.
  uint32_t carried(uint32_t bits) const {
    const uint32_t moved = bits - offset_;
    return moved + below_half_ + ((moved >> shift_) & 1u);
  }

  uint32_t mantissa_, shift_, below_half_, offset_, largest_, first_normal_;
  float aligner_;
};

}  // namespace blockscale::ISA_NAMESPACE
