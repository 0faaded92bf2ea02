// Quantisation: blockscale/numerics/quantize.py, a part of a row at a time. Its steps, its
// roundings and the order of its sums are the same, so its bits are the same. A part is whole
// blocks, and few enough numbers to stay in the nearest cache from step to step.
//
// float32 division, products and sums here are IEEE's: these files are compiled without contraction,
// and the pool of threads sees to subnormals (threads.cpp).
#pragma once
#include "exact/block_scale.h"
#include "exact/encode.h"
#include "exact/exact.h"
#include "exact/pack.h"
#include "exact/rows.h"

namespace blockscale::ISA_NAMESPACE {

constexpr int MOST_BLOCKS = ROW_PART / SMALLEST_BLOCK;

template <class Encoder>
class Quantizer {
 public:
  explicit Quantizer(const Quantize& call) : call_(call), choose_(call), encode_(call) {}

  void row_part(int64_t group, int64_t row, int64_t first) {
    const int64_t left = call_.k - first, longest = row_part_length(call_.format.block);
    count_ = left < longest ? left : longest;
    blocks_ = int(count_ / call_.format.block);
    tensor_scale_ = call_.tensor_scale ? call_.tensor_scale[group * call_.n + row] : 1.0f;
    const int64_t at = group * call_.x.group_stride + row * call_.x.row_stride;
    const auto* x = static_cast<const uint8_t*>(call_.x.data) +
                    (at + first * call_.x_column_stride) * bytes_of(call_.x_dtype);
    read_numbers(x, call_.x_dtype, count_, call_.x_column_stride, x_);
    find_amax();
    for (int b = 0; b < blocks_; ++b) scale_[b] = choose_.from_amax(amax_[b], 1.0, tensor_scale_);
    if (call_.importance) read_weights(call_.importance + group * call_.k + first);
    if (call_.rule.search == NEIGHBOURS) search_neighbours();
    if (call_.rule.search == FOUR_OVER_SIX) search_four_over_six();
    divide(scale_);
    encode_.codes(quotient_, codes_, count_);
    write(group, row, first);
  }

 private:
  // Ones in blocks where importance is zero throughout, or anywhere negative or not finite.
  void read_weights(const float* importance) {
    for (int b = 0; b < blocks_; ++b) {
      const float* from = importance + b * call_.format.block;
      double* to = weight_ + b * call_.format.block;
      bool sound = true, any = false;
      for (int i = 0; i < call_.format.block; ++i) {
        sound &= from[i] >= 0 && from[i] < bits_to_float(INFINITE_BITS);
        any |= from[i] > 0;
      }
      for (int i = 0; i < call_.format.block; ++i) to[i] = sound && any ? double(from[i]) : 1.0;
    }
  }

  // The amax of each block, and zeros for blocks that cannot be quantised.
  void find_amax() {
    const bool has_nan = call_.rule.nan_code >= 0;
    if (!has_nan)  // NaN counts as zero; infinity stays, and saturates
      for (int64_t i = 0; i < count_; ++i)
        x_[i] = is_nan(x_[i]) ? 0.0f : x_[i];
    for (int b = 0; b < blocks_; ++b) {
      float* x = x_ + b * call_.format.block;
      uint32_t largest = 0;
      for (int i = 0; i < call_.format.block; ++i) {
        const uint32_t bits = magnitude_bits(x[i]);
        largest = bits > largest ? bits : largest;
      }
      lost_[b] = has_nan && largest >= INFINITE_BITS;
      if (lost_[b]) {
        largest = 0;
        for (int i = 0; i < call_.format.block; ++i) x[i] = 0.0f;
      }
      amax_[b] = bits_to_float(largest);
    }
  }

  void divide(const Scale* scale) {
    for (int b = 0; b < blocks_; ++b) {
      const float* x = x_ + b * call_.format.block;
      float* to = quotient_ + b * call_.format.block;
      const float divisor = scale[b].value * tensor_scale_;
      if (divisor > 0 && divisor < bits_to_float(INFINITE_BITS))
        for (int i = 0; i < call_.format.block; ++i) to[i] = x[i] / divisor;
      else  // zeros whatever the number, but infinity saturates
        for (int i = 0; i < call_.format.block; ++i)
          to[i] = magnitude_bits(x[i]) == INFINITE_BITS ? x[i] : 0.0f * x[i];
    }
  }

  // Of each dequantised block; neighbours are summed first.
  void squared_errors(const Scale* scale, double* error) {
    divide(scale);
    encode_.nearest(quotient_, quotient_, count_);
    for (int b = 0; b < blocks_; ++b) {
      const int64_t first = int64_t(b) * call_.format.block;
      const float value = scale[b].value;
      for (int64_t i = first; i < first + call_.format.block; ++i) {
        const float decoded = quotient_[i] * value * tensor_scale_;
        const double off = double(x_[i]) - double(decoded);
        square_[i] = off * off;
      }
    }
    if (call_.importance)
      for (int64_t i = 0; i < count_; ++i) square_[i] = weight_[i] * square_[i];
    double *from = square_, *to = sum_;
    for (int64_t left = count_ / 2; left >= blocks_; left /= 2) {
      for (int64_t i = 0; i < left; ++i) to[i] = from[2 * i] + from[2 * i + 1];
      double* summed = to;
      to = from;
      from = summed;
    }
    for (int b = 0; b < blocks_; ++b) error[b] = from[b];
  }

  // Takes the candidates that cost less; the earlier one on a tie.
  void take_better(const Scale* candidate) {
    double error[MOST_BLOCKS];
    squared_errors(candidate, error);
    for (int b = 0; b < blocks_; ++b)
      if (error[b] < least_[b]) {
        least_[b] = error[b];
        scale_[b] = candidate[b];
      }
  }

  // Scale codes up to a binade from the first choice.
  void search_neighbours() {
    Scale start[MOST_BLOCKS], candidate[MOST_BLOCKS];
    for (int b = 0; b < blocks_; ++b) start[b] = scale_[b];
    squared_errors(start, least_);
    for (int distance = 1; distance <= 1 << call_.rule.scale.mantissa; ++distance)
      for (int step = -distance; step <= distance; step += 2 * distance) {
        for (int b = 0; b < blocks_; ++b)
          candidate[b] = amax_[b] > 0 ? choose_.moved(start[b], step) : start[b];
        take_better(candidate);
      }
  }

  // amax mapped to 6 or to 4, the two largest values of E2M1.
  void search_four_over_six() {
    Scale to_four[MOST_BLOCKS];
    for (int b = 0; b < blocks_; ++b)
      to_four[b] = choose_.from_amax(amax_[b], 1.5, tensor_scale_);
    squared_errors(scale_, least_);
    take_better(to_four);
  }

  void write(int64_t group, int64_t row, int64_t first) {
    const StridedBatch& codes = call_.codes;
    uint8_t* to = static_cast<uint8_t*>(codes.data) + group * codes.group_stride +
                  row * codes.row_stride + first * call_.format.bits / 8;
    const auto write_codes = [&](auto packing) { pack<decltype(packing)>(codes_, count_, to); };
    switch (call_.format.bits) {
      case 2: with_packing<2>(call_.code_layout, write_codes); break;
      case 3: with_packing<3>(call_.code_layout, write_codes); break;
      case 4: with_packing<4>(call_.code_layout, write_codes); break;
      case 5: with_packing<5>(call_.code_layout, write_codes); break;
      case 6: with_packing<6>(call_.code_layout, write_codes); break;
      case 7: with_packing<7>(call_.code_layout, write_codes); break;
      default: with_packing<8>(call_.code_layout, write_codes);
    }
    const StridedBatch& scales = call_.scales;
    const int bytes = call_.format.scale_bytes;
    uint8_t* at = static_cast<uint8_t*>(scales.data) + group * scales.group_stride +
                  row * scales.row_stride + first / call_.format.block * bytes;
    for (int b = 0; b < blocks_; ++b, at += bytes) {
      const uint32_t wide = lost_[b] ? NAN_BITS : float_to_bits(scale_[b].value);
      if (bytes == 4)
        std::memcpy(at, &wide, 4);
      else
        *at = lost_[b] ? uint8_t(call_.rule.nan_code) : scale_[b].code;
    }
  }

  const Quantize& call_;
  const ScaleChooser choose_;
  const Encoder encode_;
  int64_t count_ = 0;
  int blocks_ = 0;
  float tensor_scale_ = 1;
  float x_[LARGEST_BLOCK], quotient_[LARGEST_BLOCK];
  double square_[LARGEST_BLOCK], sum_[LARGEST_BLOCK / 2];
  double weight_[LARGEST_BLOCK];  // of the squares, where there is an importance
  uint8_t codes_[LARGEST_BLOCK];
  float amax_[MOST_BLOCKS];
  bool lost_[MOST_BLOCKS];  // blocks with a NaN or an infinity that the scale can tell
  Scale scale_[MOST_BLOCKS];
  double least_[MOST_BLOCKS];
};

template <class Encoder>
void quantize_row_parts(const Quantize& call, int64_t begin, int64_t end) {
  const int64_t length = row_part_length(call.format.block);
  const int64_t in_row = (call.k + length - 1) / length;
  Quantizer<Encoder> quantizer(call);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / in_row;
    quantizer.row_part(row / call.n, row % call.n, i % in_row * length);
  }
}

}  // namespace blockscale::ISA_NAMESPACE
