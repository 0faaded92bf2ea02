// The cpu_tiles layout: weights in the order that vector registers read them, for every m.
//
// Rows go in tiles of 16, one row to a 32-bit lane; k goes in chunks of 32. A chunk of a tile is
// `bits` vectors of 16 words, so that 32 codes of b bits fill exactly b words of a row. A word is
// two halves of 16 bits: the low half holds codes of even k, the high half those of odd k, and one
// shift brings the pair (2p, 2p + 1) to the bottom of both halves. A half has room for 16 / b codes;
// its spare bits at the top, taken in word order, are a stream that holds the pairs left over:
//
//     bits   2   3   4   5   6   7   8
//     codes to a half    8   5   4   3   2   2   2
//     spare bits         0   1   0   1   4   2   0
//     pairs left over    0   1   0   1   4   2   0
//
// Scales follow the same tiles: one vector of 16 for each block, a byte (or a float32) to a row.
// Rows are padded to 16 and k to 32 with zero bytes.
#pragma once
#include <cstdint>

namespace blockscale::cpu_tiles {

constexpr int ROWS = 16;   // of a tile
constexpr int CHUNK = 32;  // k of a chunk
constexpr int PAIRS = CHUNK / 2;

constexpr int codes_per_half(int bits) { return 16 / bits; }
constexpr int spare_bits(int bits) { return 16 % bits; }
constexpr int direct_pairs(int bits) { return bits * codes_per_half(bits); }

// Part of a code: `width` bits of word `word`, from bit `shift` of a half, to bit `to` of the code.
struct Piece {
  int word, shift, width, to;
};

// The number of pieces of a pair's codes: 1 for those in place, more for those in spare bits.
constexpr int piece_count(int bits, int pair) {
  if (pair < direct_pairs(bits)) return 1;
  const int first = (pair - direct_pairs(bits)) * bits, last = first + bits - 1;
  return last / spare_bits(bits) - first / spare_bits(bits) + 1;
}

constexpr Piece piece(int bits, int pair, int index) {
  if (pair < direct_pairs(bits))
    return {pair / codes_per_half(bits), bits * (pair % codes_per_half(bits)), bits, 0};
  const int spare = spare_bits(bits), base = bits * codes_per_half(bits);
  const int first = (pair - direct_pairs(bits)) * bits, end = first + bits;
  const int word = first / spare + index;
  const int from = word * spare > first ? word * spare : first;
  const int to = (word + 1) * spare < end ? (word + 1) * spare : end;
  return {word, base + from % spare, to - from, from - first};
}

// Columns four at a time, a group, with a code in each of four bytes of a row: words of codes that fill whole bytes have
// them so, shifted down by a code for each next group; others are put together of two pairs.
constexpr int GROUPS = CHUNK / 4;  // of a chunk
constexpr bool in_whole_bytes(int bits) { return 8 % bits == 0; }

// The column of a chunk whose code is byte `at` of a group. Columns 0 to 15 are those of groups 0 to 3.
constexpr int column_of(int bits, int group, int at) {
  if (!in_whole_bytes(bits)) return 2 * (2 * group + at % 2) + at / 2;
  const int steps = 8 / bits, word = group / steps, step = group % steps;
  return 2 * (word * 2 * steps + at % 2 * steps + step) + at / 2;
}

constexpr int64_t tiles(int64_t n) { return (n + ROWS - 1) / ROWS; }
constexpr int64_t chunks(int64_t k) { return (k + CHUNK - 1) / CHUNK; }
constexpr int64_t padded(int64_t k) { return chunks(k) * CHUNK; }
constexpr int64_t tile_words(int64_t k, int bits) { return chunks(k) * bits * ROWS; }
constexpr int64_t tile_scales(int64_t k, int block) { return k / block * ROWS; }

}  // namespace blockscale::cpu_tiles
