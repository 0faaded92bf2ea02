// Codes, one to a byte, to and from the two ways of packing them row after row: eight at a time, in
// the bytes of one 64-bit word.
#pragma once
#include <cstdint>
#include <cstring>

#include "abi.h"

namespace blockscale::ISA_NAMESPACE {

constexpr uint64_t EACH_BYTE = 0x0101010101010101u;

inline uint64_t load_word(const uint8_t* from, int bytes = 8) {
  uint64_t word = 0;
  std::memcpy(&word, from, size_t(bytes));
  return word;
}

// Code i of a row occupies bits [i * BITS, (i + 1) * BITS): lanes of bytes, pairs and fours close up.
template <int BITS>
struct Stream {
  static constexpr int GROUP = 8, BYTES = BITS;

  static void pack(const uint8_t* codes, uint8_t* to) {
    uint64_t word = load_word(codes);
    word = (word & 0x00ff00ff00ff00ffu) | (word & 0xff00ff00ff00ff00u) >> (8 - BITS);
    word = (word & 0x0000ffff0000ffffu) | (word & 0xffff0000ffff0000u) >> (16 - 2 * BITS);
    word = (word & 0x00000000ffffffffu) | (word & 0xffffffff00000000u) >> (32 - 4 * BITS);
    std::memcpy(to, &word, BITS);
  }

  static void unpack(const uint8_t* from, uint8_t* codes) {
    constexpr uint64_t FOUR = (uint64_t(1) << 4 * BITS) - 1;
    constexpr uint64_t TWO = ((uint64_t(1) << 2 * BITS) - 1) * 0x0000000100000001u;
    constexpr uint64_t ONE = ((uint64_t(1) << BITS) - 1) * 0x0001000100010001u;
    uint64_t word = load_word(from, BITS);
    word = (word & FOUR) | (word & ~FOUR) << (32 - 4 * BITS);
    word = (word & TWO) | (word & ~TWO) << (16 - 2 * BITS);
    word = (word & ONE) | (word & ~ONE) << (8 - BITS);
    std::memcpy(codes, &word, 8);
  }
};

// 32 codes are BITS words of 32 bits: bit i of word j is bit j of code i.
template <int BITS>
struct Planes {
  static constexpr int GROUP = 32, BYTES = 4 * BITS;

  static void pack(const uint8_t* codes, uint8_t* to) {
    for (int octet = 0; octet < 4; ++octet) {
      const uint64_t word = load_word(codes + 8 * octet);
      for (int j = 0; j < BITS; ++j)  // the product brings bit 0 of byte i to bit 56 + i
        to[4 * j + octet] = uint8_t((word >> j & EACH_BYTE) * 0x0102040810204080u >> 56);
    }
  }

  static void unpack(const uint8_t* from, uint8_t* codes) {
    for (int octet = 0; octet < 4; ++octet) {
      uint64_t word = 0;
      for (int j = 0; j < BITS; ++j) {  // byte i keeps bit i alone, which the sum moves to its top
        const uint64_t alone = from[4 * j + octet] * EACH_BYTE & 0x8040201008040201u;
        word |= ((alone + 0x7f * EACH_BYTE) >> 7 & EACH_BYTE) << j;
      }
      std::memcpy(codes + 8 * octet, &word, 8);
    }
  }
};

template <class Packing>
void pack(const uint8_t* codes, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; i += Packing::GROUP, to += Packing::BYTES)
    Packing::pack(codes + i, to);
}

template <class Packing>
void unpack(const uint8_t* from, int64_t count, uint8_t* codes) {
  for (int64_t i = 0; i < count; i += Packing::GROUP, from += Packing::BYTES)
    Packing::unpack(from, codes + i);
}

// Calls work with the packing of a layout.
template <int BITS, class Work>
void with_packing(int32_t layout, Work work) {
  layout == BIT_PLANES ? work(Planes<BITS>()) : work(Stream<BITS>());
}

}  // namespace blockscale::ISA_NAMESPACE
