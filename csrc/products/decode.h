// Codes and scales to numbers, sixteen rows at a time.
//
// A decoder takes a word of each lane and the bit where a code begins; other codes may lie above and
// below it. It may have a quick way that some codes do not allow: `plain(word)` tells whether every
// code of the word does, and the quick and the careful way agree where it is true.
#pragma once
#include "abi.h"
#include "cpu_tiles.h"
#include "isa/vec.h"

namespace blockscale::ISA_NAMESPACE {

template <int BITS_>
struct TableDecoder {
  static constexpr int BITS = BITS_;
  Table<BITS> table;
  explicit TableDecoder(const Format& format) : table(format.table) {}
  ALWAYS_INLINE bool plain(const u32x16&) const { return true; }
  ALWAYS_INLINE f32x16 quick(const u32x16& word, uint32_t shift) const { return table[word >> shift]; }
  ALWAYS_INLINE f32x16 careful(const u32x16& word, uint32_t shift) const { return quick(word, shift); }
};

// An 8-bit float with E exponent bits: moved to the place of float32's fields, it is right but for
// the exponent's bias, which an addition mends, for all codes but subnormal and special ones.
template <int E, bool INFINITE>
struct FloatDecoder {
  static constexpr int BITS = 8, M = 7 - E, BIAS = (1 << (E - 1)) - 1;
  static constexpr uint32_t EXPONENT = ((1u << E) - 1) << M;

  explicit FloatDecoder(const Format&) {}

  ALWAYS_INLINE bool plain(const u32x16& word) const {
#if defined(__AVX512BW__)
    const __m512i codes = (__m512i)word;
    const __mmask64 low = _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(char(EXPONENT)));
    const __m512i top = _mm512_set1_epi8(char(INFINITE ? EXPONENT : 0x7f));
    const __mmask64 high = _mm512_cmpeq_epi8_mask(_mm512_and_si512(codes, top), top);
    return (low | high) == 0;
#else
    const uint32_t each = 0x01010101u, top = (INFINITE ? EXPONENT : 0x7fu) * each;
    const auto has_zero_byte = [&](const u32x16& x) { return (x - each) & ~x & (0x80u * each); };
    const u32x16 low = word & EXPONENT * each, high = (word & top) ^ top;
    return !any((has_zero_byte(low) | has_zero_byte(high)) != 0u);
#endif
  }

  ALWAYS_INLINE f32x16 quick(const u32x16& word, uint32_t shift) const {
    const auto top = bits_as<i32x16>(word << (24u - shift));  // the code in the uppermost bits
    const u32x16 moved = bits_as<u32x16>(top >> (8 - E)) & (0x80000000u | 0x7fu << (16 + E));
    return as_float(moved + (uint32_t(127 - BIAS) << 23));
  }

  ALWAYS_INLINE f32x16 careful(const u32x16& word, uint32_t shift) const {
    const u32x16 code = word >> shift, magnitude = code & 0x7fu;
    const u32x16 moved = (magnitude << (23 - M)) + (uint32_t(127 - BIAS) << 23);
    // A subnormal number comes out as 2^(1 - bias) (1 + f) / 2, and is 2^(1 - bias) f: exactly.
    const float smallest_normal = 1.0f / float(1 << (BIAS - 1));
    f32x16 value = as_float(moved);
    value = select(magnitude < (1u << M), value + value - smallest_normal, value);
    const u32x16 special = splat(INFINITE ? EXPONENT : 0x7fu);
    const u32x16 top = INFINITE ? moved + (uint32_t(127 - BIAS) << 23) : splat(0x7fc00000u);
    value = select(magnitude >= special, as_float(top), value);
    return as_float(as_bits(value) | ((code & 0x80u) << 24));
  }
};

using E4M3Decoder = FloatDecoder<4, false>;
using E5M2Decoder = FloatDecoder<5, true>;

// Calls work with the decoder that a format names.
template <class Work>
inline void with_decoder(const Format& format, Work work) {
  if (format.decoder == E4M3) return work(E4M3Decoder(format));
  if (format.decoder == E5M2) return work(E5M2Decoder(format));
  switch (format.bits) {  // Python asks for no others: blockscale/kernels/matmul/cpu.py
    case 2: return work(TableDecoder<2>(format));
    case 3: return work(TableDecoder<3>(format));
    case 4: return work(TableDecoder<4>(format));
    case 5: return work(TableDecoder<5>(format));
    default: return work(TableDecoder<6>(format));
  }
}

// Sixteen scales. A code in [scale_low, scale_low + scale_plain) becomes a float32 by a shift and an
// addition; the others (zero, subnormal, NaN) are looked up.
#if defined(NEON_KERNELS)
// Both are done to the upper halves of float32, which hold all of a scale of eight bits.
ALWAYS_INLINE f32x16 scale_vector(const Format& format, const uint8_t* at) {
  if (format.scale_bytes == 4) return load<f32x16>(at);
  const uint8x16_t codes = vld1q_u8(at);
  const uint8x16_t from_low = vsubq_u8(codes, vdupq_n_u8(uint8_t(format.scale_low)));
  if (__builtin_expect(vmaxvq_u8(from_low) >= format.scale_plain, 0))
    return lookup(format.scale_table, widen_bytes(at));
  const int16x8_t shift = vdupq_n_s16(int16_t(format.scale_shift - 16));
  const uint16x8_t add = vdupq_n_u16(uint16_t(format.scale_add >> 16)), zero = vdupq_n_u16(0);
  const uint16x8_t low = vaddq_u16(vshlq_u16(vmovl_u8(vget_low_u8(codes)), shift), add);
  const uint16x8_t high = vaddq_u16(vshlq_u16(vmovl_high_u8(codes), shift), add);
  return {{(f32x16::Part)vzip1q_u16(zero, low), (f32x16::Part)vzip2q_u16(zero, low),
           (f32x16::Part)vzip1q_u16(zero, high), (f32x16::Part)vzip2q_u16(zero, high)}};
}
#else
ALWAYS_INLINE f32x16 scale_vector(const Format& format, const uint8_t* at) {
  if (format.scale_bytes == 4) return load<f32x16>(at);
  const u32x16 code = widen_bytes(at);
  if (any_at_least(code - format.scale_low, format.scale_plain))
    return lookup(format.scale_table, code);
  return as_float((code << format.scale_shift) + format.scale_add);
}
#endif

// The codes of one chunk of a tile, in the order of k.
template <int BITS>
struct Chunk {
  static constexpr int IN_WORD = cpu_tiles::codes_per_half(BITS);  // pairs
  u32x16 words[BITS];

  explicit Chunk(const uint8_t* codes) {
    for (int w = 0; w < BITS; ++w) words[w] = load<u32x16>(codes + 64 * w);
  }

  // visit(pair, even, odd) gets sixteen rows of columns 2 pair and 2 pair + 1.
  template <class Decoder, class Visit>
  ALWAYS_INLINE void for_each(const Decoder& decode, Visit visit) const {
    in_words(decode, 0, BITS, visit);
    in_spare_bits([&](int pair, u32x16 bits) {
      visit(pair, decode.careful(bits, 0u), decode.careful(bits, 16u));
    });
  }

  // The pairs that lie whole in words `first` to `last`.
  template <class Decoder, class Visit>
  ALWAYS_INLINE void in_words(const Decoder& decode, int first, int last, Visit visit) const {
#pragma GCC unroll 8
    for (int w = first; w < last; ++w) {
      const u32x16 word = words[w];
      if (decode.plain(word)) {
#pragma GCC unroll 8
        for (int i = 0; i < IN_WORD; ++i)
          visit(w * IN_WORD + i, decode.quick(word, uint32_t(BITS * i)),
                decode.quick(word, uint32_t(BITS * i + 16)));
      } else {
#pragma GCC unroll 8
        for (int i = 0; i < IN_WORD; ++i)
          visit(w * IN_WORD + i, decode.careful(word, uint32_t(BITS * i)),
                decode.careful(word, uint32_t(BITS * i + 16)));
      }
    }
  }

  // The pairs that are spread over the spare bits of the words: visit(pair, bits) gets the code of the
  // even column at bit 0 of a lane, that of the odd one at bit 16.
  template <class Visit>
  ALWAYS_INLINE void in_spare_bits(Visit visit) const {
    spare_from<cpu_tiles::direct_pairs(BITS)>(visit);
  }

 private:
  template <int PAIR, class Visit>
  ALWAYS_INLINE void spare_from(Visit visit) const {
    if constexpr (PAIR < cpu_tiles::PAIRS) {
      u32x16 bits{};
      for (int i = 0; i < cpu_tiles::piece_count(BITS, PAIR); ++i) {
        const cpu_tiles::Piece p = cpu_tiles::piece(BITS, PAIR, i);
        const uint32_t mask = ((1u << p.width) - 1u) * 0x00010001u;
        bits |= ((words[p.word] >> uint32_t(p.shift)) & mask) << uint32_t(p.to);
      }
      visit(PAIR, bits);
      spare_from<PAIR + 1>(visit);
    }
  }
};

// The two scales of a chunk, of its first and its second sixteen columns. Blocks are of 16, or of a
// multiple of 32.
class ChunkScales {
 public:
  ChunkScales(const Format& format, const uint8_t* scales, int64_t k)
      : format_(format), at_(scales), blocks_(k / format.block), chunks_per_block_(format.block / 32) {}

  f32x16 first, second;

  ALWAYS_INLINE void advance() {
    if (chunks_per_block_ == 0) {
      first = next();
      second = next();
    } else if (left_-- == 0) {
      left_ = chunks_per_block_ - 1;
      first = second = next();
    }
  }

 private:
  ALWAYS_INLINE f32x16 next() {
    if (blocks_-- <= 0) return f32x16{};  // the padding of a chunk that k does not fill
    const f32x16 scale = scale_vector(format_, at_);
    prefetch_scales(at_);
    at_ += cpu_tiles::ROWS * format_.scale_bytes;
    return scale;
  }

  const Format& format_;
  const uint8_t* at_;
  int64_t blocks_, chunks_per_block_, left_ = 0;
};

}  // namespace blockscale::ISA_NAMESPACE
