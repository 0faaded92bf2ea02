// What happens to a tile of sums on its way out: tensor scales, bias, activation, one cast. Static,
// like convert.h.
#pragma once
#include <math.h>

#include "abi.h"
#include "convert.h"
#include "lanes.h"

namespace blockscale {

static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static inline float activate(const Matmul& call, float gate, float up) {
  switch (call.activation) {
    case SILU:
      return gate * sigmoid(gate) * up;
    case GELU:
      return 0.5f * gate * erfcf(gate * -0.70710678118654752f) * up;
    case GELU_TANH:
      return gate * sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate)) * up;
    default: {  // SWIGLU_OAI
      const float g = gate < call.limit ? gate : call.limit;
      const float u = up < -call.limit ? -call.limit : up > call.limit ? call.limit : up;
      return g * sigmoid(call.alpha * g) * (u + 1.0f);
    }
  }
}

// One branch: sums of a row, scaled and biased, for `count` columns from `column`.
static inline void finish_branch(const Matmul& call, const Weight& weight, int64_t group, int64_t row,
                          int64_t column, int count, const float* sums, float* out) {
  float scale = weight.tensor_scale ? weight.tensor_scale[group] : 1.0f;
  const float x_scale = call.x_scale ? call.x_scale[row] : 1.0f;
  for (int i = 0; i < count; ++i) out[i] = sums[i] * x_scale * scale;
  if (!weight.bias) return;
  const int64_t base = group * call.n + column;
  for (int i = 0; i < count; ++i) out[i] += read_float(weight.bias, base + i, weight.bias_dtype);
}

// `up` is null where nothing is gated.
static inline void finish_row(const Matmul& call, int64_t group, int64_t row, int64_t column, int count,
                       const float* gate, const float* up) {
  float first[lanes::ROWS], second[lanes::ROWS];
  finish_branch(call, call.gate, group, row, column, count, gate, first);
  if (up) {
    finish_branch(call, call.up, group, row, column, count, up, second);
    for (int i = 0; i < count; ++i) first[i] = activate(call, first[i], second[i]);
  }
  for (int i = 0; i < count; ++i)
    write_float(call.out, row * call.out_stride + column + i, call.out_dtype, first[i]);
}

}  // namespace blockscale
