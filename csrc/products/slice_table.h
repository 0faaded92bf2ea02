// The values of a weight as integers in slices of eight bits, for slices_neon.h. An integer of three slices is
// s0 2^16 + s1 2^8 + s2, each from -128 to 127.
//
// Floats of few bits are integers times a power of two: E2M1 and E2M3 of one slice, E3M2 of two. The values of a codebook
// are rounded to two slices or three, as few as the bound of float32 sums leaves room for. It allows a product k + 8
// roundings, of 2^-24 of it each. Of these take
//
//     k / 2         what is left out of x (slice_rows.h)
//     k / 16        totals: an addition for each run of 32 columns, and for each chunk that has rests
//     22            the sums of slices brought together: at most four roundings of partial sums, which are up to 6.1 times
//                   the product (a digit may be twice the number, and the digits of a number three times it), one of
//                   them the product itself; then the units of x and of the weight and their product with a sum
//     3 k / 8 - 18  the table
//
// and k / 16 is left for products of errors. How far a table is off depends on its unit. Small values have the least room,
// so the smallest is brought to an integer, as large as the largest value permits, or to one somewhat smaller that
// happens to suit the other values better.
#pragma once
#include <array>
#include <cmath>

#include "products/kernels.h"

namespace blockscale {

constexpr int largest_of_slices(int slices) { return slices ? 256 * largest_of_slices(slices - 1) + 127 : 0; }

constexpr int UNITS_TRIED = 128;  // all of them take 2 us (N1)

// Times a unit of x they are normal numbers (LEAST_SLICED_EXPONENT).
constexpr float LEAST_UNIT = 0x1p-40f, LARGEST_UNIT = 0x1p20f;

// Whether all values are integers times the unit but for `allowed` of each. Small ones, which seldom are, stand in the
// middle of a codebook.
inline bool close_to_integers(const float* values, int count, float unit, double allowed) {
  for (int i = 0; i < count; ++i) {
    const double quotient = double(values[(i + count / 2) % count]) / double(unit);
    if (!(std::fabs(quotient - std::nearbyint(quotient)) <= allowed * std::fabs(quotient))) return false;
  }
  return true;
}

inline SlicedTable cut_table(const float* values, int count, float unit, int slices) {
  SlicedTable table{{}, slices, unit};
  if (!(unit >= LEAST_UNIT && unit <= LARGEST_UNIT)) return {};
  for (int i = 0; i < count; ++i) {
    int integer = int(std::nearbyint(double(values[i]) / double(unit)));
    for (int s = slices - 1; s >= 0; --s) {
      table.integers[s][i] = int8_t(integer);
      integer = (integer - table.integers[s][i]) / 256;
    }
  }
  return table;
}

// No slices where the values cannot be cut so. Python foretells their number: kernels/matmul/cpu_slices.py.
inline SlicedTable sliced_table(const float* values, int bits, int64_t k) {
  const int count = 1 << bits;
  float smallest = INFINITY, largest = 0;
  for (int i = 0; i < count; ++i) {
    const float size = std::fabs(values[i]);
    largest = std::fmax(largest, size);
    if (size > 0) smallest = std::fmin(smallest, size);
  }
  if (!(largest > 0 && largest < INFINITY)) return {};
  for (float unit = std::ldexp(1.0f, std::ilogb(largest)); largest / unit <= float(largest_of_slices(2)); unit /= 2)
    if (close_to_integers(values, count, unit, 0)) {
      const bool one = least_slices(bits) == 1 && largest / unit <= float(largest_of_slices(1));
      return cut_table(values, count, unit, one ? 1 : 2);
    }
  const double allowed = (0.375 * double(k) - 18) * 0x1p-24;
  for (int slices = 2; slices <= most_slices(bits); ++slices) {
    const int most = largest_of_slices(slices), first = int(double(smallest) / double(largest) * most);
    for (int integer = first; integer > 0 && integer > first - UNITS_TRIED; --integer) {
      const float unit = float(double(smallest) / integer);
      if (double(largest) / double(unit) < most + 0.5 && close_to_integers(values, count, unit, allowed))
        return cut_table(values, count, unit, slices);
    }
  }
  return {};
}

// Of gate and of up, which are one where nothing is gated. Of none where slices cannot be multiplied: in blocks of 16
// they are by four bits of one slice alone (slices_neon.h).
inline std::array<SlicedTable, 2> sliced_tables(const Matmul& call) {
  const Format& format = call.format;
  if (call.isa < DOTPROD || format.decoder != TABLE) return {};
  const SlicedTable gate = sliced_table(format.table, format.bits, call.k);
  const SlicedTable up =
      call.up_table == format.table ? gate : sliced_table(call.up_table, format.bits, call.k);
  const bool short_runs = format.block < cpu_tiles::CHUNK;
  if (short_runs && !(format.bits == 4 && gate.slices == 1 && up.slices == 1)) return {};
  return {gate, up};
}

inline bool can_slice(const std::array<SlicedTable, 2>& tables) { return tables[0].slices && tables[1].slices; }

}  // namespace blockscale
