// Preparing int8 products: the weights' values as bytes, and x in the order that the kernel meets it.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "abi.h"
#include "kernels.h"
#include "lanes.h"
#include "threads.h"

namespace blockscale {

// Exact for E2M1, whose values are halves; a codebook is rounded to multiples of its largest value
// over 127. offset: what the kernel wants added to each.
inline IntegerTable integer_table(const float* values, int bits, int offset) {
  const int count = 1 << bits;
  float largest = 0;
  bool halves = true;
  for (int i = 0; i < count; ++i) {
    const float size = std::fabs(values[i]);
    if (size > largest) largest = size;
    halves = halves && 2 * size == std::floor(2 * size) && size < 64;
  }
  IntegerTable table;
  table.unit = halves && largest > 1 ? 0.5f : (largest > 0 ? largest : 1.0f) / 127;
  for (int i = 0; i < 16; ++i)
    table.bytes[i] = uint8_t(int(std::nearbyint(values[i % count] / table.unit)) + offset);
  return table;
}

// The column of a chunk that byte `byte` of a word holds once its codes are shifted down by `step`
// codes: bytes 0 and 1 are of the low half, which has the even columns, bytes 2 and 3 of the high.
constexpr int column_of(int bits, int word, int step, int byte) {
  const int in_half = 8 / bits * (byte % 2) + step;
  return 2 * (word * lanes::codes_per_half(bits) + in_half) + byte / 2;
}

// The integer of an int8 code, which is 128 higher; -127 has two codes.
inline int8_t integer_of(uint8_t code) { return int8_t(code == 0 ? -127 : int(code) - 128); }

class ArrangedRows {
 public:
  // offset: how much higher the kernel's bytes of weights are than the integers they stand for.
  ArrangedRows(const Matmul& call, int offset) {
    const int segment = call.format.block == 16 ? 16 : 32;
    const int64_t padded = call.row_begin[call.groups] + 3;  // rows come up to four at a time
    view_.word_stride = call.k / 4;
    view_.segment_stride = call.k / segment;
    words_.resize(size_t(padded * view_.word_stride));
    scales_.resize(size_t(padded * view_.segment_stride));
    starts_.resize(size_t(padded * view_.segment_stride));
    parallel_for(call.row_begin[call.groups], call.threads,
                 [&](int64_t row) { arrange(call, row, segment, offset); });
    view_.words = words_.data();
    view_.scales = scales_.data();
    view_.starts = starts_.data();
  }

  const Int8Rows& view() const { return view_; }

 private:
  void arrange(const Matmul& call, int64_t row, int segment, int offset) {
    const uint8_t* codes = static_cast<const uint8_t*>(call.x) + row * call.x_stride;
    const int bits = call.format.bits;
    uint32_t* to = words_.data() + row * view_.word_stride;
    for (int64_t chunk = 0; chunk < call.k; chunk += lanes::CHUNK)
      for (int word = 0; word < bits; ++word)
        for (int step = 0; step < 8 / bits; ++step) {
          int8_t four[4];
          for (int i = 0; i < 4; ++i)
            four[i] = integer_of(codes[chunk + column_of(bits, word, step, i)]);
          std::memcpy(to++, four, 4);
        }
    const float* block_scale = call.x_block_scale + row * (call.k / INT8_BLOCK);
    for (int64_t s = 0; s < view_.segment_stride; ++s) {
      int sum = 0;
      for (int i = 0; i < segment; ++i) sum += integer_of(codes[s * segment + i]);
      const size_t at = size_t(row * view_.segment_stride + s);
      starts_[at] = -offset * sum;
      scales_[at] = block_scale[s * segment / INT8_BLOCK] / 127;
    }
  }

  std::vector<uint32_t> words_;
  std::vector<float> scales_;
  std::vector<int32_t> starts_;
  Int8Rows view_{};
};

}  // namespace blockscale
