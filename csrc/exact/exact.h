// Work whose every bit is defined: quantize, dequantize, repack and what they need. Like kernels.h, but these
// files are compiled without contracting a * b + c, in namespaces of their own: what they share with
// the matrix products by name must not be shared by the linker.
#pragma once
#include <cstdint>

#include "abi.h"
#include "products/kernels.h"
#include "products/row_tiles.h"

namespace blockscale {

constexpr int SMALLEST_BLOCK = 8, LARGEST_BLOCK = 4096, ROW_PART = 1024;

// Numbers of a row that are worked on together; whole blocks.
constexpr int64_t row_part_length(int block) { return block > ROW_PART ? block : ROW_PART; }

constexpr int INT8_COLUMNS = 1024;  // of int8 x that are rounded together; whole chunks

// x of a product in int8, arranged for it (int8_rows.h).
struct Int8Arrangement {
  const Matmul& call;
  const RowTile* row_tiles;
  int64_t row_tile_count;
  int offset;  // how much higher the kernel's bytes of weights are than the integers they stand for
  Int8Rows to;
  int32_t threads;
};

void arrange_int8(const Int8Arrangement& work);

#define BLOCKSCALE_EXACT(isa)                                                                      \
  namespace isa {                                                                                  \
  void quantize(const Quantize& call, int64_t begin, int64_t end); /* parts of all rows */         \
  void dequantize(const Dequantize& call, int64_t begin, int64_t end); /* rows, or tiles */        \
  void repack(const Repack& call, int64_t begin, int64_t end); /* tiles */                         \
  void amax(const Amax& call, int64_t begin, int64_t end); /* rows */                              \
  /* units [row_tile][k / INT8_COLUMNS] */                                                             \
  void arrange_int8(const Int8Arrangement& work, int64_t begin, int64_t end);                      \
  }

BLOCKSCALE_EXACT(exact_scalar)
BLOCKSCALE_EXACT(exact_avx2)
BLOCKSCALE_EXACT(exact_avx512)
BLOCKSCALE_EXACT(exact_neon)

}  // namespace blockscale
