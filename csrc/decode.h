// Codes to numbers, sixteen rows at a time. A decoder turns the bits of a code, found at the bottom
// of each lane with its neighbours' bits above it, into float32.
#pragma once
#include "abi.h"
#include "lanes.h"
#include "vec.h"

namespace blockscale::ISA_NAMESPACE {

template <int BITS_>
struct TableDecoder {
  static constexpr int BITS = BITS_;
  Table<BITS> table;
  explicit TableDecoder(const Format& format) : table(format.table) {}
  f32x16 operator()(u32x16 code) const { return table[code]; }
};

// An 8-bit float with E exponent bits. Moved to float32's exponent field, its subnormals come out a
// factor short: there 2 f - 2^(1 - bias) is right, and exact.
template <int E, bool INFINITE>
struct FloatDecoder {
  static constexpr int BITS = 8, M = 7 - E, BIAS = (1 << (E - 1)) - 1;
  explicit FloatDecoder(const Format&) {}
  f32x16 operator()(u32x16 code) const {
    const u32x16 magnitude = code & 0x7fu;
    const u32x16 moved = (magnitude << (23 - M)) + (uint32_t(127 - BIAS) << 23);
    f32x16 value = as_float(moved);
    const float smallest_normal = 1.0f / float(1 << (BIAS - 1));
    value = select((i32x16)(magnitude < (1u << M)), value + value - smallest_normal, value);
    const u32x16 special = INFINITE ? splat(uint32_t(((1 << E) - 1) << M)) : splat(0x7fu);
    const u32x16 top = INFINITE ? moved + (uint32_t(127 - BIAS) << 23) : splat(0x7fc00000u);
    value = select((i32x16)(magnitude >= special), as_float(top), value);
    return as_float(as_bits(value) | ((code & 0x80u) << 24));
  }
};

using E4M3Decoder = FloatDecoder<4, false>;
using E5M2Decoder = FloatDecoder<5, true>;

// The bits of pair PAIR: those of the even k at bit 0 of a lane, those of the odd k at bit 16.
template <int BITS, int PAIR>
inline u32x16 pair_bits(const u32x16* words) {
  constexpr lanes::Piece first = lanes::piece(BITS, PAIR, 0);
  if constexpr (lanes::piece_count(BITS, PAIR) == 1) {
    return words[first.word] >> uint32_t(first.shift);
  } else {
    u32x16 bits{};
    for (int i = 0; i < lanes::piece_count(BITS, PAIR); ++i) {
      const lanes::Piece p = lanes::piece(BITS, PAIR, i);
      const uint32_t mask = ((1u << p.width) - 1u) * 0x00010001u;
      bits |= ((words[p.word] >> uint32_t(p.shift)) & mask) << uint32_t(p.to);
    }
    return bits;
  }
}

// Calls emit with each pair of a chunk, from FIRST, that is in spare bits.
template <int BITS, int FIRST, class Emit>
inline void emit_left_over(const u32x16* words, Emit& emit) {
  if constexpr (FIRST < lanes::PAIRS) {
    emit(pair_bits<BITS, FIRST>(words));
    emit_left_over<BITS, FIRST + 1>(words, emit);
  }
}

}  // namespace blockscale::ISA_NAMESPACE
