// Numbers to codes, whole arrays at a time: one encoder for every small float, one for every
// codebook. Each answers with codes, or with what those codes decode to.
#pragma once
#include <cstdint>

#include "exact/small_float.h"

namespace blockscale::ISA_NAMESPACE {

class FloatEncoder {
 public:
  explicit FloatEncoder(const Quantize& call)
      : rounding_(call.element), sign_shift_(uint32_t(32 - call.format.bits)) {}

  void codes(const float* x, uint8_t* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t sign = float_to_bits(x[i]) & 0x80000000u;
      to[i] = uint8_t(rounding_.code(magnitude(x[i])) | sign >> sign_shift_);
    }
  }

  void nearest(const float* x, float* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t sign = float_to_bits(x[i]) & 0x80000000u;
      to[i] = bits_to_float(float_to_bits(rounding_.nearest(magnitude(x[i]))) | sign);
    }
  }

 private:
  static float magnitude(float x) { return bits_to_float(float_to_bits(x) & 0x7fffffffu); }

  Rounding rounding_;
  uint32_t sign_shift_;
};

// A codebook's code is the number of midpoints below x. [-1, 1] is cut into cells; a cell knows how
// many midpoints lie in the cells before it, and what is left is to step over those inside it. Cells
// are found by a function that never decreases, so however it rounds, the count is exact.
class CodebookEncoder {
 public:
  explicit CodebookEncoder(const Quantize& call) : table_(call.format.table) {
    const int last = (1 << call.format.bits) - 1;
    int32_t inside[CELLS] = {};
    for (int i = 0; i < last; ++i) {
      middle_[i] = float_below((double(table_[i]) + double(table_[i + 1])) / 2);
      const int32_t crowd = ++inside[cell(middle_[i])];
      if (crowd > steps_) steps_ = crowd;
    }
    middle_[last] = bits_to_float(0x7f800000u);  // nothing steps over the last code
    int32_t before = 0;
    for (int c = 0; c < CELLS; ++c) {
      first_[c] = before;
      before += inside[c];
    }
  }

  void codes(const float* x, uint8_t* to, int64_t count) const {
    for_each_batch(x, count, [&](int64_t at, const int32_t* code, int size) {
      for (int i = 0; i < size; ++i) to[at + i] = uint8_t(code[i]);
    });
  }

  void nearest(const float* x, float* to, int64_t count) const {
    for_each_batch(x, count, [&](int64_t at, const int32_t* code, int size) {
      for (int i = 0; i < size; ++i) to[at + i] = table_[code[i]];
    });
  }

 private:
  static constexpr int CELLS = 1024, BATCH = 256;

  static int32_t cell(float x) {
    const float place = x * float(CELLS / 2) + float(CELLS / 2), top = float(CELLS - 1);
    const float above = place > 0.0f ? place : 0.0f;
    return int32_t(above < top ? above : top);
  }

  // The largest float32 that is not above a number: a float32 exceeds both or neither.
  static float float_below(double number) {
    const float near = float(number);
    if (double(near) <= number) return near;
    const uint32_t bits = float_to_bits(near);
    return bits_to_float(bits >> 31 ? bits + 1 : bits - 1);
  }

  template <class Use>
  void for_each_batch(const float* x, int64_t count, Use use) const {
    for (int64_t at = 0; at < count; at += BATCH) {
      const int size = int(count - at < BATCH ? count - at : BATCH);
      const float* from = x + at;
      int32_t code[BATCH];
      for (int i = 0; i < size; ++i) code[i] = first_[cell(from[i])];
      for (int step = 0; step < steps_; ++step)
        for (int i = 0; i < size; ++i) code[i] += from[i] > middle_[code[i]];
      use(at, code, size);
    }
  }

  const float* table_;
  int steps_ = 0;
  float middle_[256];
  int32_t first_[CELLS];
};

}  // namespace blockscale::ISA_NAMESPACE
