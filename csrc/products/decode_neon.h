// Codes to float32 on ARM, sixteen at a time: four columns of a quad (isa/neon.h), whose four rows become the lanes of
// a register.
//
// A chunk is eight groups of four columns. The codes of a group are brought to sixteen bytes, a column's four rows side
// by side. Tables are looked up byte by byte: a plane holds one byte of every value, and two or four planes are zipped
// to float32. Floats of eight bits become float16, exactly, which the CPU widens.
#pragma once
#include "abi.h"
#include "cpu_tiles.h"
#include "isa/neon.h"

namespace blockscale::ISA_NAMESPACE {

using cpu_tiles::GROUPS;

// Four bytes of four rows, as four rows of each byte.
ALWAYS_INLINE uint8x16_t rows_together(uint8x16_t words) {
  const uint8x16_t order = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return vqtbl1q_u8(words, order);
}

// The codes of a pair of columns from bit TO of 16-bit lanes, even and odd; bits around them may be anything.
template <int BITS, int PAIR, int TO>
ALWAYS_INLINE uint16x8_t codes_of_pair(const uint8_t* quad) {
  constexpr int spare = cpu_tiles::spare_bits(BITS), pieces = cpu_tiles::piece_count(BITS, PAIR);
  constexpr cpu_tiles::Piece first = cpu_tiles::piece(BITS, PAIR, 0);
  constexpr int last = first.word + pieces - 1;
  uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(quad + 64 * last));
  // The spare bits of words before it go below its own, the last word's being at the top.
  unrolled<pieces - 1>([&](auto i) INLINED {
    bits = vsriq_n_u16(bits, vreinterpretq_u16_u8(vld1q_u8(quad + 64 * (last - 1 - i))), spare * (i + 1));
  });
  constexpr int from = first.shift - spare * (pieces - 1), shift = from - TO;
  if constexpr (shift > 0) return vshrq_n_u16(bits, shift);
  if constexpr (shift < 0) return vshlq_n_u16(bits, -shift);
  return bits;
}

// Which codes of a group lie side by side: a row's four columns, as in the layout, or a column's four rows.
enum class Order { ROW, COLUMN };

// quad: the first word of the chunk, of the quad's first row.
template <int BITS, int GROUP, Order ORDER>
ALWAYS_INLINE uint8x16_t codes_of_group(const uint8_t* quad) {
  const uint8x16_t mask = vdupq_n_u8((1 << BITS) - 1);
  if constexpr (cpu_tiles::in_whole_bytes(BITS)) {
    constexpr int steps = 8 / BITS, shift = GROUP % steps * BITS;
    uint8x16_t codes = vld1q_u8(quad + 64 * (GROUP / steps));
    if constexpr (ORDER == Order::COLUMN) codes = rows_together(codes);
    if constexpr (shift > 0) codes = vshrq_n_u8(codes, shift);
    return shift + BITS < 8 ? vandq_u8(codes, mask) : codes;
  } else {
    const uint16x8_t first = codes_of_pair<BITS, 2 * GROUP, 0>(quad);
    const uint16x8_t second = codes_of_pair<BITS, 2 * GROUP + 1, 8>(quad);
    // An insertion with a shift would do it too, but shifts have one pipe of two (N1).
    const uint8x16_t both = vreinterpretq_u8_u16(vbslq_u16(vdupq_n_u16(0x00ff), first, second));
    const uint8x16_t codes = vandq_u8(both, mask);
    return ORDER == Order::COLUMN ? rows_together(codes) : codes;
  }
}

// Codes to bytes.
template <int BITS>
struct ByteTable {
  static constexpr int REGISTERS = BITS <= 4 ? 1 : 1 << (BITS - 4);
  std::conditional_t<REGISTERS == 1, uint8x16_t, std::conditional_t<REGISTERS == 2, uint8x16x2_t, uint8x16x4_t>> entries;

  ByteTable() = default;

  explicit ByteTable(const void* bytes) {  // [2^BITS]
    uint8_t padded[16 * REGISTERS] = {};
    std::memcpy(padded, bytes, 1 << BITS);
    if constexpr (REGISTERS == 1) entries = vld1q_u8(padded);
    if constexpr (REGISTERS == 2) entries = vld1q_u8_x2(padded);
    if constexpr (REGISTERS == 4) entries = vld1q_u8_x4(padded);
  }

  ALWAYS_INLINE uint8x16_t operator[](uint8x16_t codes) const {
    if constexpr (REGISTERS == 1) return vqtbl1q_u8(entries, codes);
    if constexpr (REGISTERS == 2) return vqtbl2q_u8(entries, codes);
    if constexpr (REGISTERS == 4) return vqtbl4q_u8(entries, codes);
  }
};

// PLANES: 2 where the lower half of every value is zero, as of floats of few bits; else 4.
template <int BITS_, int PLANES>
struct PlaneDecoder {
  static constexpr int BITS = BITS_;
  static constexpr float GAIN = 1;
  static constexpr bool ALWAYS_PLAIN = true;
  ByteTable<BITS> planes[PLANES];

  explicit PlaneDecoder(const Format& format) {
    for (int p = 0; p < PLANES; ++p) {
      uint8_t bytes[1 << BITS];
      for (int i = 0; i < 1 << BITS; ++i)
        std::memcpy(bytes + i, reinterpret_cast<const uint8_t*>(format.table + i) + 4 - PLANES + p, 1);
      planes[p] = ByteTable<BITS>(bytes);
    }
  }

  // Four rows of each column of a group.
  template <bool CAREFUL>
  ALWAYS_INLINE void floats(uint8x16_t codes, float32x4_t (&columns)[4]) const {
    const uint16x8x2_t upper = upper_halves<CAREFUL>(codes);
    uint8x16_t low[2] = {vdupq_n_u8(0), vdupq_n_u8(0)};
    if constexpr (PLANES == 4)
      for (int p = 0; p < 2; ++p) low[p] = planes[p][codes];
    const uint16x8_t lower[2] = {zipped<0>(low), zipped<1>(low)};
    for (int half = 0; half < 2; ++half) {
      columns[2 * half] = vreinterpretq_f32_u16(vzip1q_u16(lower[half], upper.val[half]));
      columns[2 * half + 1] = vreinterpretq_f32_u16(vzip2q_u16(lower[half], upper.val[half]));
    }
  }

  // Those of the sixteen float32 values, in order.
  template <bool CAREFUL>
  ALWAYS_INLINE uint16x8x2_t upper_halves(uint8x16_t codes) const {
    const uint8x16_t high[2] = {planes[PLANES - 2][codes], planes[PLANES - 1][codes]};
    return {{zipped<0>(high), zipped<1>(high)}};
  }

 private:
  template <int HALF>
  static ALWAYS_INLINE uint16x8_t zipped(const uint8x16_t (&bytes)[2]) {
    return vreinterpretq_u16_u8(HALF ? vzip2q_u8(bytes[0], bytes[1]) : vzip1q_u8(bytes[0], bytes[1]));
  }
};

// An 8-bit float with E exponent bits. Its fields in the places of float16's make the number divided by GAIN, subnormal
// or not. Only the NaN of E4M3 needs care; E5M2 has those of float16.
template <int E>
struct HalfDecoder {
  static constexpr int BITS = 8, SHIFT = E + 3;
  static constexpr float GAIN = E == 4 ? 256 : 1;
  static constexpr bool ALWAYS_PLAIN = E == 5;
  static constexpr uint8_t NAN_CODE = 0x7f;

  explicit HalfDecoder(const Format&) {}

  // Whether no code of COUNT groups of the quad is NaN.
  template <int COUNT>
  ALWAYS_INLINE bool plain(const uint8_t* quad) const {
    uint8x16_t largest = vdupq_n_u8(0);
    unrolled<COUNT>([&](auto g) INLINED {
      largest = vmaxq_u8(largest, vandq_u8(vld1q_u8(quad + 64 * g), vdupq_n_u8(0x7f)));
    });
    return vmaxvq_u8(largest) != NAN_CODE;
  }

  template <bool CAREFUL>
  ALWAYS_INLINE void floats(uint8x16_t codes, float32x4_t (&columns)[4]) const {
    const int8x16_t bytes = vreinterpretq_s8_u8(codes);
    const int16x8_t wide[2] = {vshll_n_s8(vget_low_s8(bytes), SHIFT), vshll_high_n_s8(bytes, SHIFT)};
    for (int half = 0; half < 2; ++half) {
      uint16x8_t bits = vreinterpretq_u16_s16(wide[half]);
      if constexpr (E == 4) bits = vandq_u16(bits, vdupq_n_u16(0xbf80));  // the sign was spread over two bits
      if constexpr (CAREFUL) {
        const uint16x8_t nan = vceqq_u16(vandq_u16(bits, vdupq_n_u16(0x7fff)), vdupq_n_u16(NAN_CODE << SHIFT));
        bits = vorrq_u16(bits, vandq_u16(nan, vdupq_n_u16(0x7e00)));
      }
      const float16x8_t halves = vreinterpretq_f16_u16(bits);
      columns[2 * half] = vcvt_f32_f16(vget_low_f16(halves));
      columns[2 * half + 1] = vcvt_high_f32_f16(halves);
    }
  }

  // Those of the sixteen float32 values, in order: their lower halves are zero.
  template <bool CAREFUL>
  ALWAYS_INLINE uint16x8x2_t upper_halves(uint8x16_t codes) const {
    float32x4_t quads[4];
    floats<CAREFUL>(codes, quads);
    const auto uppers = [&](int first) INLINED {
      return vuzp2q_u16(vreinterpretq_u16_f32(quads[first]), vreinterpretq_u16_f32(quads[first + 1]));
    };
    return {{uppers(0), uppers(2)}};
  }
};

inline bool lower_halves_are_zero(const float* table, int bits) {
  uint32_t any = 0, value;
  for (int i = 0; i < 1 << bits; ++i) {
    std::memcpy(&value, table + i, 4);
    any |= value;
  }
  return (any & 0xffffu) == 0;
}

// Calls work with the decoder of a format.
template <class Work>
inline void with_quad_decoder(const Format& format, Work work) {
  if (format.decoder == E4M3) return work(HalfDecoder<4>(format));
  if (format.decoder == E5M2) return work(HalfDecoder<5>(format));
  const bool two = lower_halves_are_zero(format.table, format.bits);
  switch (format.bits) {  // Python asks for no others: blockscale/kernels/matmul/cpu.py
    case 2: return work(PlaneDecoder<2, 4>(format));
    case 3: return work(PlaneDecoder<3, 4>(format));
    case 4: return two ? work(PlaneDecoder<4, 2>(format)) : work(PlaneDecoder<4, 4>(format));
    case 5: return work(PlaneDecoder<5, 4>(format));
    default: return two ? work(PlaneDecoder<6, 2>(format)) : work(PlaneDecoder<6, 4>(format));
  }
}

// work(careful), a constant: whether COUNT groups of some quads need care.
template <int COUNT, int QUADS_TAKEN, class Decoder, class Work>
ALWAYS_INLINE void with_care(const Decoder& decode, const uint8_t* quads, const Work& work) {
  bool plain = true;
  if constexpr (!Decoder::ALWAYS_PLAIN) {
    unrolled<QUADS_TAKEN>([&](auto q) INLINED { plain = plain && decode.template plain<COUNT>(quads + 16 * q); });
    if (!plain) return work(std::true_type());
  }
  work(std::false_type());
}

// visit(column, four rows of it), the column of the chunk as a constant: of COUNT groups from FIRST.
template <int FIRST, int COUNT, bool CAREFUL, class Decoder, class Visit>
ALWAYS_INLINE void for_each_column(const Decoder& decode, const uint8_t* quad, const Visit& visit) {
  unrolled<COUNT>([&](auto g) INLINED {
    constexpr int group = FIRST + g;
    float32x4_t columns[4];
    decode.template floats<CAREFUL>(codes_of_group<Decoder::BITS, group, Order::COLUMN>(quad), columns);
    unrolled<4>([&](auto at) INLINED {
      visit(std::integral_constant<int, cpu_tiles::column_of(Decoder::BITS, group, at)>(), columns[at]);
    });
  });
}

}  // namespace blockscale::ISA_NAMESPACE
