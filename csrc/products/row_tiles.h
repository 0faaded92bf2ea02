// Rows of x are taken several at a time, as many as there are registers for their sums: a row tile. What
// is left at the end of a group is a row tile of 4, 2 or 1; rows past the end are computed and dropped.
//
// x is arranged for that: float32, row tile after row tile, [k][rows of the row tile] each, with zeros where there
// is no row and where k is short of a whole chunk.
#pragma once
#include <cstdint>
#include <type_traits>

#include "abi.h"

namespace blockscale {

constexpr int rows_at_once(int isa) { return isa == AVX512 || isa == AMX ? 8 : 4; }
constexpr int ARM_INT8_ROWS = 8;  // a row's sums of half a tile are two registers
constexpr int BFMMLA_ROWS = 8;
constexpr int BFMMLA_LEAST_ROWS = 2;  // that its row tiles are padded to

// How many rows the next row tile takes of `left` rows.
constexpr int tile_rows(int64_t left, int most) {
  return left > 4 ? most : left > 2 ? 4 : left == 2 ? 2 : 1;
}

// Rows of all row tiles of a group.
constexpr int64_t padded_rows(int64_t rows, int most) {
  int64_t padded = 0;
  while (padded < rows) padded += tile_rows(rows - padded, most);
  return padded;
}

// Rows of a row tile of int8 x that AMX multiplies.
constexpr int AMX_TILE_M = 16;

struct RowTile {
  int64_t begin, end;  // rows of x
  int64_t before;      // rows of all row tiles before it
  int rows;            // its own, those past the end included
};

}  // namespace blockscale

#if defined(ISA_NAMESPACE)
namespace blockscale::ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int MOST_ROWS = rows_at_once(AVX512);
#else
constexpr int MOST_ROWS = rows_at_once(SCALAR);
#endif

// Calls work with the number of rows of a row tile as a constant.
template <int MOST = MOST_ROWS, class Work>
inline void with_rows(int rows, Work work) {
  if constexpr (MOST == 8)
    if (rows == 8) return work(std::integral_constant<int, 8>());
  if (rows == 4) return work(std::integral_constant<int, 4>());
  if (rows == 2) return work(std::integral_constant<int, 2>());
  work(std::integral_constant<int, 1>());
}

}  // namespace blockscale::ISA_NAMESPACE
#endif
