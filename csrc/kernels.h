// What each instruction set offers: work on one tile. Each kernels_*.cpp compiles the same templates
// with other flags, in a namespace of its own.
//
// Those files use nothing that is shared by name with other files (no standard containers, no inline
// functions outside their namespace): a linker keeps one copy of such a thing, and it could be the
// one that an older CPU cannot run.
#pragma once
#include <cstdint>

#include "abi.h"

namespace blockscale {

// A thread's memory for AMX: slabs of decoded tiles and sums, aligned to 64 bytes.
struct AmxScratch {
  uint8_t* slab[2];  // of gate and up: [slab_chunks][2] tiles of 1024 bytes
  float* sums;       // [gate, up][rows in blocks of 32][32]
};

// int8 activations, arranged for the kernel (int8.h).
struct Int8Rows {
  const uint32_t* words;  // [rows][k / 4]
  const float* scales;    // [rows][segments]: of x, times the unit of the weights
  const int32_t* starts;  // [rows][segments]: what a sum begins with
  int64_t word_stride, segment_stride;
};

#define BLOCKSCALE_KERNELS(isa)                                                                    \
  namespace isa {                                                                                  \
  void stream(const Matmul& call, const float* x, int64_t stride, int64_t group, int64_t tile);    \
  void decode(const Panel& call, int64_t tile);                                                    \
  }

BLOCKSCALE_KERNELS(scalar)
BLOCKSCALE_KERNELS(avx2)
BLOCKSCALE_KERNELS(avx512)

namespace amx {
int64_t slab_chunks(const Format& format);
bool multiply_panel(const Matmul& call, const uint8_t* x, int64_t group, int64_t tile,
                    bool check_scales, const AmxScratch& scratch);
}  // namespace amx

#define BLOCKSCALE_INT8(isa)                                                                       \
  namespace isa {                                                                                  \
  void int8(const Matmul& call, const uint8_t* table, const Int8Rows& x, int64_t group,            \
            int64_t tile);                                                                         \
  }

BLOCKSCALE_INT8(scalar)
BLOCKSCALE_INT8(vnni)

}  // namespace blockscale
