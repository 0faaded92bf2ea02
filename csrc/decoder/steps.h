// What a decoder does between its products, for each instruction set: see kernels.h for what these files may use.
#pragma once
#include <cstdint>

#include "abi.h"

namespace blockscale {

constexpr int64_t ATTENDING = 16;      // tokens that attend together
constexpr int64_t ATTENDED_ROWS = 32;  // of keys or values, that are converted at a time

// Numbers that `attend_together` needs memory for, with `length` tokens up to the last of those that attend.
static inline int64_t attention_memory(const Decode& call, int64_t length) {
  return call.head_dim * (ATTENDING + ATTENDED_ROWS) + length * ATTENDING;
}

// rms_norm may write over what it reads.
#define BLOCKSCALE_DECODER_STEPS(isa)                                                                  \
  namespace isa {                                                                                      \
  void rms_norm(const RmsNorm& norm, const float* x, int64_t count, float* out);                       \
  void rotate(float* head, const float* cos, const float* sin, int64_t head_dim);                      \
  void keep(const float* numbers, int64_t count, int32_t dtype, void* to, int64_t at);                 \
  void attend(const Decode& call, const DecoderLayer& layer, int64_t head, const float* q, float* out, \
              float* scores);                                                                          \
  void attend_together(const Decode& call, const DecoderLayer& layer, int64_t head, int64_t first,     \
                       const float* q, void* out, int32_t dtype, float* memory);                       \
  }

BLOCKSCALE_DECODER_STEPS(decoder_scalar)
BLOCKSCALE_DECODER_STEPS(decoder_avx2)
BLOCKSCALE_DECODER_STEPS(decoder_avx512)

}  // namespace blockscale
