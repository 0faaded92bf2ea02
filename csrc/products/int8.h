// Activations in int8: dot products of bytes, four to a lane, for codes of 2 or 4 bits.
//
// A byte look-up turns four codes of a lane into four integers; x, rounded to int8 in blocks of 32, is
// arranged to meet them (int8_rows.h). A run is the part of a chunk that shares one scale of the
// weight, 16 or 32 long: sums are exact inside it, and float32 across runs.
#pragma once
#include "isa/vec.h"
#include "products/int8_runs.h"
#include "products/kernels.h"
#include "products/row_loop.h"

#if defined(NEON_KERNELS)
#include "products/int8_neon.h"
#else
#include "products/int8_lanes.h"
#endif

namespace blockscale::ISA_NAMESPACE {

#if defined(NEON_KERNELS)
constexpr int INT8_ROWS = ARM_INT8_ROWS;
#else
constexpr int INT8_ROWS = MOST_ROWS;
#endif

// One tile of one group, for every row of it.
template <int BITS, int RUN>
void int8_group(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
                int64_t tile, [[maybe_unused]] int8_t* stage) {
  const TileOf at(call, group, tile);
#if defined(NEON_KERNELS)
  if (stages_int8(call, group)) {
    const int64_t integers = cpu_tiles::padded(call.k) * cpu_tiles::ROWS, pitch = int8_stage_bytes(call);
    const auto scales = [&](int which) { return reinterpret_cast<float*>(stage + which * pitch + integers); };
    for (int w = 0; w < 1 + (call.activation != NONE); ++w)
      stage_tile<BITS>(tables[w], call.format, at.codes(w), at.scales(w), call.k, stage + w * pitch, scales(w));
    return for_each_row_tile<INT8_ROWS>(at, [&](auto m, int which, int64_t row, float* totals) {
      staged_tile<decltype(m)::value, RUN>(tables[which], call.format, stage + which * pitch, at.scales(which),
                                           scales(which), rows_from(x, row, call.k, RUN), call.k, totals);
    });
  }
#endif
  for_each_row_tile<INT8_ROWS>(at, [&](auto m, int which, int64_t row, float* totals) {
    int8_tile<BITS, decltype(m)::value, RUN>(tables[which], call.format, at.codes(which), at.scales(which),
                                             rows_from(x, row, call.k, RUN), call.k, totals);
  });
}

// x: the group's rows. tables: of gate and up. stage: int8_stage_bytes for each of them, where ARM has several row tiles.
void int8(const Matmul& call, const IntegerTable* tables, const Int8Rows& x, int64_t group,
          int64_t tile, int8_t* stage) {
  with_runs(call.format, [&](auto bits, auto run) {
    int8_group<decltype(bits)::value, decltype(run)::value>(call, tables, x, group, tile, stage);
  });
}

}  // namespace blockscale::ISA_NAMESPACE
