// The functions of steps.h, for one instruction set. Sums are kept in sixteen lanes, which a compiler makes vectors of:
// the same bits on every machine.
#pragma once
#include <math.h>

#include "convert.h"
#include "decoder/steps.h"
#include "isa/exponential.h"

namespace blockscale::ISA_NAMESPACE {
namespace {

constexpr int LANES = 16;
#if defined(__AVX512F__)
constexpr int AT_ONCE = 8;  // sums of sixteen lanes that registers hold
#else
constexpr int AT_ONCE = 4;
#endif

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

// Rows of the cache as float32: where they are, or in `buffer`.
const float* floats_of(const void* cache, int64_t begin, int64_t count, int32_t dtype, float* buffer) {
  if (dtype == FLOAT32) return static_cast<const float*>(cache) + begin;
  with_row(cache, begin, dtype, [&](auto number) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = number(i);
  });
  return buffer;
}

// Scores of COUNT keys for the sixteen queries whose numbers stand side by side.
template <int COUNT>
ALWAYS_INLINE void score(const float* queries, const float* keys, int64_t size, float* scores) {
  f32x16 sums[COUNT] = {};
  for (int64_t i = 0; i < size; ++i) {
    const f32x16 query = load<f32x16>(queries + i * LANES);
    for (int j = 0; j < COUNT; ++j) sums[j] += query * keys[j * size + i];
  }
  for (int j = 0; j < COUNT; ++j) store(scores + j * LANES, sums[j]);
}

// Adds `rows` values, weighted, to COUNT numbers of sixteen results.
template <int COUNT>
ALWAYS_INLINE void add_values(const float* weights, const float* values, int64_t rows, int64_t size, float* results) {
  f32x16 sums[COUNT];
  for (int i = 0; i < COUNT; ++i) sums[i] = load<f32x16>(results + i * LANES);
  for (int64_t r = 0; r < rows; ++r) {
    const f32x16 weight = load<f32x16>(weights + r * LANES);
    for (int i = 0; i < COUNT; ++i) sums[i] += weight * values[r * size + i];
  }
  for (int i = 0; i < COUNT; ++i) store(results + i * LANES, sums[i]);
}

// Scores to weights: their exponentials, and what all of a lane's are divided by.
f32x16 exponentials(float* scores, int64_t length) {
  f32x16 largest = splat(-INFINITY), sum = splat(0.0f);
  for (int64_t t = 0; t < length; ++t) {
    const f32x16 each = load<f32x16>(scores + t * LANES);
    largest = select(each > largest, each, largest);
  }
  for (int64_t t = 0; t < length; ++t) {
    const f32x16 each = exponential(load<f32x16>(scores + t * LANES) - largest);
    store(scores + t * LANES, each);
    sum += each;
  }
  return sum;
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

void attend_together(const Decode& call, const DecoderLayer& layer, int64_t head, int64_t first, const float* q,
                     void* out, int32_t dtype, float* memory) {
  const int64_t size = call.head_dim, row = call.heads * size, before = call.position + first;
  const int64_t count = call.tokens - first < LANES ? call.tokens - first : LANES;
  const int64_t length = before + count;  // of keys that the last of these tokens sees
  const int64_t of_head = head / (call.heads / call.kv_heads) * layer.head_stride;
  float* const turned = memory;  // [size][16]: queries, and later results
  float* const buffer = turned + size * LANES;
  float* const scores = buffer + ATTENDED_ROWS * size;  // [length][16]
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j < LANES; ++j)
      turned[i * LANES + j] = j < count ? call.attention_scale * q[(first + j) * row + head * size + i] : 0.0f;

  for (int64_t t = 0; t < length; t += ATTENDED_ROWS) {
    const int64_t rows = length - t < ATTENDED_ROWS ? length - t : ATTENDED_ROWS;
    const float* keys = floats_of(layer.keys, of_head + t * size, rows * size, call.cache_dtype, buffer);
    int64_t r = 0;
    for (; r + AT_ONCE <= rows; r += AT_ONCE)
      score<AT_ONCE>(turned, keys + r * size, size, scores + (t + r) * LANES);
    for (; r < rows; ++r) score<1>(turned, keys + r * size, size, scores + (t + r) * LANES);
  }
  for (int64_t t = before + 1; t < length; ++t)  // a token does not see those after it
    for (int64_t j = 0; j < t - before; ++j) scores[t * LANES + j] = -INFINITY;
  float sums[LANES];
  store(sums, exponentials(scores, length));

  for (int64_t i = 0; i < size * LANES; ++i) turned[i] = 0.0f;
  for (int64_t t = 0; t < length; t += ATTENDED_ROWS) {
    const int64_t rows = length - t < ATTENDED_ROWS ? length - t : ATTENDED_ROWS;
    const float* values = floats_of(layer.values, of_head + t * size, rows * size, call.cache_dtype, buffer);
    int64_t i = 0;
    for (; i + AT_ONCE <= size; i += AT_ONCE)
      add_values<AT_ONCE>(scores + t * LANES, values + i, rows, size, turned + i * LANES);
    for (; i < size; ++i) add_values<1>(scores + t * LANES, values + i, rows, size, turned + i * LANES);
  }
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < size; ++i) buffer[i] = turned[i * LANES + j] / sums[j];
    keep(buffer, size, dtype, out, (first + j) * row + head * size);
  }
}

}  // namespace blockscale::ISA_NAMESPACE
