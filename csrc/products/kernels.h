// What each instruction set offers: work on one tile. Each kernels_*.cpp compiles the same templates
// with other flags, in a namespace of its own.
//
// Those files use nothing that is shared by name with other files (no standard containers, no inline
// functions outside their namespace): a linker keeps one copy of such a thing, and it could be the
// one that an older CPU cannot run.
#pragma once
#include <cstdint>

#include "abi.h"
#include "cpu_tiles.h"
#include "products/row_tiles.h"

namespace blockscale {

// What AMX has to know of a format.
struct AmxFacts {
  bool powers_of_two;  // scales are, blocks are of 32 or more, and no element is tiny
  bool exact;          // products of elements and scales are bfloat16 numbers
  bool check_scales;   // some could make products subnormal or infinite
};

// A thread's memory for AMX, aligned to 64 bytes.
struct AmxScratch {
  uint8_t* stage;  // amx_stage_bytes: tiles of 1024 bytes, [chunk][2]
  float* sums;    // [gate, up][rows in blocks of 32][32]
};

// The elements of a weight as integers, for int8 activations; one is worth `unit`.
struct IntegerTable {
  int8_t integers[16];
  uint8_t raised[16];  // by 128
  float unit;
};

// int8 activations of some row tiles (row_tiles.h), arranged for the kernel: see int8_rows.h.
struct Int8Rows {
  uint32_t* words;  // [runs][run / 4][rows]; for AMX, [runs][rows][run / 4]
  float* scales;    // [runs][rows]: what one is worth
  int32_t* starts;  // [runs][rows]: what a sum begins with
};

// From the row tile that has so many rows before it.
static inline Int8Rows rows_from(const Int8Rows& x, int64_t before, int64_t k, int run) {
  const int64_t at = before * (k / run);
  return {x.words + before * (k / 4), x.scales + at, x.starts + at};
}

#define BLOCKSCALE_KERNELS(isa)                                                                    \
  namespace isa {                                                                                  \
  void stream(const Matmul& call, const float* x, int64_t group, int64_t tile);                    \
  int64_t gemm_tiles();                                                                           \
  int64_t gemm_scratch(const Matmul& call, int64_t rows);                                         \
  void gemm(const Matmul& call, const float* x, int64_t group, int64_t tile,              \
                     float* scratch);                                                              \
  }

BLOCKSCALE_KERNELS(scalar)
BLOCKSCALE_KERNELS(avx2)
BLOCKSCALE_KERNELS(avx512)
BLOCKSCALE_KERNELS(neon)

namespace amx {
int64_t amx_stage_bytes(const Format& format);
bool multiply_panel(const Matmul& call, const uint8_t* x, int64_t group, int64_t tile,
                    const AmxFacts& facts, const AmxScratch& scratch);
int64_t int8_scratch(int64_t rows);  // bytes, aligned to 64
void int8_amx(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                int64_t tile, uint8_t* scratch);
}  // namespace amx

// ARM looks codes and scales of a tile up once where more than one row tile multiplies them.
static inline bool stages_int8(const Matmul& call, int64_t group) {
  return call.row_begin[group + 1] - call.row_begin[group] > ARM_INT8_ROWS;
}

// Of the integers of a tile of one weight, and its scales as float32.
static inline int64_t int8_stage_bytes(const Matmul& call) {
  return cpu_tiles::padded(call.k) * cpu_tiles::ROWS + cpu_tiles::tile_scales(call.k, call.format.block) * 4;
}

#define BLOCKSCALE_INT8(isa)                                                                       \
  namespace isa {                                                                                  \
  void int8(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,      \
            int64_t tile, int8_t* stage);                                                          \
  }

BLOCKSCALE_INT8(scalar)
BLOCKSCALE_INT8(avx2)
BLOCKSCALE_INT8(vnni)
BLOCKSCALE_INT8(neon)
BLOCKSCALE_INT8(dotprod)
BLOCKSCALE_INT8(i8mm)

constexpr int SLICES = 3;      // of a number of x (slice_rows.h)
constexpr int SLICE_ROWS = 4;  // of a row tile, at most
constexpr int MOST_WEIGHT_SLICES = 3;

// Slices that products are compiled for: floats, of four or six bits, have one or two, and codebooks, of two to five, have
// two or three, those of two bits two. Others are streamed.
constexpr int least_slices(int bits) { return bits == 4 || bits == 6 ? 1 : 2; }
constexpr int most_slices(int bits) { return bits >= 3 && bits <= 5 ? MOST_WEIGHT_SLICES : 2; }

// The elements of a weight as integers in slices of eight bits, the highest first; one is worth `unit`. See slice_table.h.
struct SlicedTable {
  int8_t integers[MOST_WEIGHT_SLICES][64];
  int slices;
  float unit;
};

// What slices leave of some rows of a chunk.
struct Rest {
  int64_t chunk;
  const float* x;  // [32][rows of the row tile]
};

// The slices of a row tile.
struct SliceRows {
  const uint32_t* words;  // [groups of columns][rows][SLICES]: four columns to a word
  const float* units;     // [chunks][rows]: what one is worth
  const Rest* rests;
  int64_t rest_count;
};

namespace neon {
// totals[rows][16] += what slices left out of one tile.
void add_rests(const Format& format, const uint8_t* codes, const uint8_t* scales, const SliceRows& x, int64_t k,
               int rows, float* totals);
}  // namespace neon

namespace dotprod {
void slices(const Matmul& call, const SlicedTable* tables, const SliceRows* x, int64_t group, int64_t tile);
}  // namespace dotprod

namespace bf16 {
// x: bfloat16 rows of the group, arranged as in bfmmla.h.
void bfmmla(const Matmul& call, const uint16_t* x, int64_t group, int64_t tile);
}  // namespace bf16

// What every CPU of an architecture runs.
#if defined(__aarch64__)
namespace baseline = neon;
#else
namespace baseline = scalar;
#endif

}  // namespace blockscale
