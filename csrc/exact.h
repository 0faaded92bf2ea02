// Work whose every bit is defined: quantize, dequantize, repack and what they need. Like kernels.h, but these
// files are compiled without contracting a * b + c, in namespaces of their own: what they share with
// the matrix products by name must not be shared by the linker.
#pragma once
#include <cstdint>

#include "abi.h"

namespace blockscale {

constexpr int SMALLEST_BLOCK = 8, LARGEST_BLOCK = 4096, SEGMENT = 1024;

// Numbers of a row that are worked on together; whole blocks.
constexpr int64_t segment_length(int block) { return block > SEGMENT ? block : SEGMENT; }

#define BLOCKSCALE_EXACT(isa)                                                                      \
  namespace isa {                                                                                  \
  void quantize(const Quantize& call, int64_t begin, int64_t end); /* segments of all rows */      \
  void dequantize(const Dequantize& call, int64_t begin, int64_t end); /* rows, or tiles */        \
  void repack(const Repack& call, int64_t begin, int64_t end); /* tiles */                         \
  void amax(const Amax& call, int64_t begin, int64_t end); /* rows */                              \
  }

BLOCKSCALE_EXACT(exact_scalar)
BLOCKSCALE_EXACT(exact_avx2)
BLOCKSCALE_EXACT(exact_avx512)

}  // namespace blockscale
