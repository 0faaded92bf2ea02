// The functions of steps.h, for one instruction set. Sums are kept in sixteen lanes, which a compiler makes vectors of:
// the same bits on every machine.
#pragma once
#include <math.h>

#include "convert.h"
#include "decoder/steps.h"

namespace blockscale::ISA_NAMESPACE {
namespace {

constexpr int LANES = 16;

struct Lanes {
  float sums[LANES] = {};

  float total() const {
    float sum = 0.0f;
    for (int i = 0; i < LANES; ++i) sum += sums[i];
    return sum;
  }
};

template <class Read>
float dot(const float* x, int64_t count, Read read) {
  Lanes lanes;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int j = 0; j < LANES; ++j) lanes.sums[j] += x[i + j] * read(i + j);
  for (; i < count; ++i) lanes.sums[i % LANES] += x[i] * read(i);
  return lanes.total();
}

// work(read), where read(i) is number i of a row of the cache.
template <class Work>
void with_row(const void* cache, int64_t begin, int32_t dtype, Work work) {
  const auto* halves = static_cast<const uint16_t*>(cache) + begin;
  if (dtype == FLOAT32)
    work([numbers = static_cast<const float*>(cache) + begin](int64_t i) { return numbers[i]; });
  else if (dtype == BFLOAT16)
    work([halves](int64_t i) { return from_bfloat16(halves[i]); });
  else
    work([halves](int64_t i) { return from_float16(halves[i]); });
}

}  // namespace

void rms_norm(const RmsNorm& norm, const float* x, int64_t count, float* out) {
  const float squares = dot(x, count, [x](int64_t i) { return x[i]; });
  const float scale = 1.0f / sqrtf(squares / float(count) + norm.epsilon);
  with_row(norm.weight, 0, norm.dtype, [&](auto weight) {
    for (int64_t i = 0; i < count; ++i) out[i] = x[i] * scale * weight(i);
  });
}

// Number i and number i + head_dim / 2 are a point in a plane, which is turned.
void rotate(float* head, const float* cos, const float* sin, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float x = head[i], y = head[i + half];
    head[i] = x * cos[i] - y * sin[i];
    head[i + half] = y * cos[i + half] + x * sin[i + half];
  }
}

void keep(const float* numbers, int64_t count, int32_t dtype, void* to, int64_t at) {
  if (dtype == FLOAT32)
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(to)[at + i] = numbers[i];
  else
    for (int64_t i = 0; i < count; ++i)
      static_cast<uint16_t*>(to)[at + i] = dtype == BFLOAT16 ? to_bfloat16(numbers[i]) : to_float16(numbers[i]);
}

void attend(const Decode& call, const DecoderLayer& layer, int64_t head, const float* q, float* out, float* scores) {
  const int64_t length = call.position + 1, size = call.head_dim;
  const int64_t first = head / (call.heads / call.kv_heads) * layer.head_stride;
  float largest = -INFINITY;
  for (int64_t t = 0; t < length; ++t) {
    with_row(layer.keys, first + t * size, call.cache_dtype,
             [&](auto key) { scores[t] = call.attention_scale * dot(q, size, key); });
    largest = scores[t] > largest ? scores[t] : largest;
  }
  float sum = 0.0f;
  for (int64_t t = 0; t < length; ++t) sum += scores[t] = expf(scores[t] - largest);
  for (int64_t i = 0; i < size; ++i) out[i] = 0.0f;
  for (int64_t t = 0; t < length; ++t)
    with_row(layer.values, first + t * size, call.cache_dtype, [&](auto value) {
      const float weight = scores[t] / sum;
      for (int64_t i = 0; i < size; ++i) out[i] += weight * value(i);
    });
}

}  // namespace blockscale::ISA_NAMESPACE
