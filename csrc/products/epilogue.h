// What happens to sixteen sums on their way out: tensor scales, bias, activation, one cast.
#pragma once
#include "abi.h"
#include "convert.h"
#include "cpu_tiles.h"
#include "isa/vec.h"
#include "products/activation.h"

namespace blockscale::ISA_NAMESPACE {

// `count` numbers, at most sixteen, in the first lanes; the others are zero.
inline f32x16 read_vector(const void* from, int64_t index, int32_t dtype, int count) {
  float numbers[cpu_tiles::ROWS] = {};
  if (count == cpu_tiles::ROWS && dtype == BFLOAT16)
    return as_float(widen_words(static_cast<const uint16_t*>(from) + index) << 16u);
  for (int i = 0; i < count; ++i) numbers[i] = read_float(from, index + i, dtype);
  return load<f32x16>(numbers);
}

// The first `count` lanes, each rounded once to nearest even; NaN is canonical.
inline void write_vector(void* to, int64_t index, int32_t dtype, int count, f32x16 value) {
  if (dtype == FLOAT32) {
    float numbers[cpu_tiles::ROWS];
    store(numbers, value);
    std::memcpy(static_cast<float*>(to) + index, numbers, size_t(count) * sizeof(float));
    return;
  }
  uint16_t halves[cpu_tiles::ROWS];
  if (dtype == BFLOAT16) {
    const u32x16 bits = as_bits(value), rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
    const i32x16 is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    store_low_words(halves, select(is_nan, splat(0x7fc00000u), rounded) >> 16u);
  } else {
    for (int i = 0; i < cpu_tiles::ROWS; ++i) halves[i] = to_float16(value[i]);
  }
  std::memcpy(static_cast<uint16_t*>(to) + index, halves, size_t(count) * sizeof(uint16_t));
}

// One branch: sums of a row, scaled and biased, for `count` columns from `column`.
inline f32x16 finish_branch(const Matmul& call, const Weight& weight, int64_t group, int64_t row,
                            int64_t column, int count, const float* sums) {
  f32x16 value = load<f32x16>(sums);
  if (call.x_scale) value *= call.x_scale[row];
  if (weight.tensor_scale) value *= weight.tensor_scale[group];
  if (weight.bias)
    value += read_vector(weight.bias, group * call.n + column, weight.bias_dtype, count);
  return value;
}

// `up` is null where nothing is gated.
inline void finish_row(const Matmul& call, int64_t group, int64_t row, int64_t column, int count,
                       const float* gate, const float* up) {
  f32x16 value = finish_branch(call, call.gate, group, row, column, count, gate);
  if (up) {
    const f32x16 other = finish_branch(call, call.up, group, row, column, count, up);
    value = activate(call, value, other);
  }
  write_vector(call.out, row * call.out_stride + column, call.out_dtype, count, value);
}

}  // namespace blockscale::ISA_NAMESPACE
