// Sixteen lanes of float32 or integers, whatever the machine. Only what vector types cannot say, table
// look-ups above all, is written with the names of instructions.
//
// Compiled once for each instruction set, in a namespace of its own (ISA_NAMESPACE).
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "isa/split_vector.h"

// ARM's kernels take four rows of a weight to a register, the others sixteen. Those others can be compiled on ARM too,
// to be tested there.
#if defined(__aarch64__) && !defined(__AVX512F__) && !defined(PORTABLE_KERNELS)
#define NEON_KERNELS
#endif

// Inner loops are one function after inlining, whatever the compiler thinks of their size.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace blockscale::ISA_NAMESPACE {

#if defined(__AVX512F__)
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
ALWAYS_INLINE f32x16 splat(float value) { return value - f32x16{}; }
ALWAYS_INLINE u32x16 splat(uint32_t value) { return value | u32x16{}; }
ALWAYS_INLINE i32x16 splat(int32_t value) { return value | i32x16{}; }
ALWAYS_INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) { return mask ? yes : no; }
ALWAYS_INLINE u32x16 select(i32x16 mask, u32x16 yes, u32x16 no) { return mask ? yes : no; }
ALWAYS_INLINE f32x16 to_floats(i32x16 integers) { return __builtin_convertvector(integers, f32x16); }
#else
using f32x16 = SplitVector<float>;
using u32x16 = SplitVector<uint32_t>;
using i32x16 = SplitVector<int32_t>;

template <class T>
ALWAYS_INLINE SplitVector<T> splat(T value) {
  SplitVector<T> all;
  for (auto& part : all.part) part = value - typename SplitVector<T>::Part{};
  return all;
}

template <class T>
ALWAYS_INLINE SplitVector<T> select(const i32x16& mask, const SplitVector<T>& yes, const SplitVector<T>& no) {
  return by_parts<T>([](auto m, auto y, auto n) { return m ? y : n; }, mask, yes, no);
}

ALWAYS_INLINE f32x16 to_floats(const i32x16& integers) {
  return by_parts<float>([](auto x) { return __builtin_convertvector(x, f32x16::Part); }, integers);
}
#endif

// From and to any address. Register by register: what is copied as a whole is kept in memory.
template <class V>
ALWAYS_INLINE V load(const void* from) {
  V v;
#if defined(__AVX512F__)
  std::memcpy(&v, from, sizeof v);
#else
  for (int i = 0; i < V::PARTS; ++i)
    std::memcpy(&v.part[i], static_cast<const uint8_t*>(from) + i * REGISTER, REGISTER);
#endif
  return v;
}

template <class V>
ALWAYS_INLINE void store(void* to, const V& v) {
#if defined(__AVX512F__)
  std::memcpy(to, &v, sizeof v);
#else
  for (int i = 0; i < V::PARTS; ++i)
    std::memcpy(static_cast<uint8_t*>(to) + i * REGISTER, &v.part[i], REGISTER);
#endif
}

// The same bits as another type.
template <class To, class From>
ALWAYS_INLINE To bits_as(const From& from) {
#if defined(__AVX512F__)
  return (To)from;
#else
  To to;
  for (int i = 0; i < To::PARTS; ++i) to.part[i] = (typename To::Part)from.part[i];
  return to;
#endif
}

ALWAYS_INLINE f32x16 as_float(const u32x16& bits) { return bits_as<f32x16>(bits); }
ALWAYS_INLINE u32x16 as_bits(const f32x16& value) { return bits_as<u32x16>(value); }

// Weights are read once, in order, and asked for a page ahead: measured best among 1 to 8 KiB, and
// better than a hint that they will not be used again.
template <int VECTORS>
ALWAYS_INLINE void prefetch(const uint8_t* codes) {
  for (int i = 0; i < VECTORS; ++i) __builtin_prefetch(codes + 4096 + 64 * i);
}

// Scales are a stream of their own, of an eighth of the bytes: that is as far ahead in time.
ALWAYS_INLINE void prefetch_scales(const uint8_t* scales) { __builtin_prefetch(scales + 512); }

// Whether any lane of the result of a comparison is set.
ALWAYS_INLINE bool any(const i32x16& mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#else
  i32x16::Part all = mask.part[0];
  for (int i = 1; i < i32x16::PARTS; ++i) all |= mask.part[i];
#if defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)all) != 0;
#elif defined(__x86_64__)
  return _mm_movemask_epi8((__m128i)all) != 0;
#elif defined(__aarch64__)
  return vmaxvq_u32((uint32x4_t)all) != 0;
#else
  return (all[0] | all[1] | all[2] | all[3]) != 0;
#endif
#endif
}

ALWAYS_INLINE bool any_at_least(const u32x16& value, uint32_t least) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epu32_mask((__m512i)value, _mm512_set1_epi32(int(least))) != 0;
#else
  return any(value >= least);
#endif
}

// A table of 2^BITS float32 values, held in registers where the machine can look it up there.
template <int BITS>
struct Table {
  const float* memory;
#if defined(__AVX512F__)
  static constexpr int VECTORS = BITS <= 4 ? 1 : BITS == 5 ? 2 : BITS == 6 ? 4 : 0;
  __m512 part[VECTORS == 0 ? 1 : VECTORS];
#elif defined(__AVX2__)
  static constexpr int VECTORS = BITS <= 4 ? 2 : 0;
  __m256 part[VECTORS == 0 ? 1 : VECTORS];
#elif defined(__aarch64__)
  static constexpr int VECTORS = BITS <= 4 ? 1 : 0;
  uint8x16x4_t part[1];
#endif

  explicit Table(const float* values) : memory(values) {
    // Entries repeat up to the index width of the instruction, so that bits above a code, which
    // belong to its neighbour, need no mask.
    [[maybe_unused]] float wide[64];
    for (int i = 0; i < 64; ++i) wide[i] = values[i & ((1 << BITS) - 1)];
#if defined(__AVX512F__)
    for (int i = 0; i < VECTORS; ++i) part[i] = _mm512_loadu_ps(wide + 16 * i);
#elif defined(__AVX2__)
    for (int i = 0; i < VECTORS; ++i) part[i] = _mm256_loadu_ps(wide + 8 * i);
#elif defined(__aarch64__)
    if (VECTORS) std::memcpy(part, wide, sizeof part);
#endif
  }

  // Values of the low BITS bits of each lane; the bits above may be anything.
  ALWAYS_INLINE f32x16 operator[](const u32x16& index) const {
#if defined(__AVX512F__)
    const __m512i at = (__m512i)index;
    if constexpr (BITS <= 4) return (f32x16)_mm512_permutexvar_ps(at, part[0]);
    if constexpr (BITS == 5) return (f32x16)_mm512_permutex2var_ps(part[0], at, part[1]);
    if constexpr (BITS == 6) {
      const __mmask16 upper = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
      const __m512 low = _mm512_permutex2var_ps(part[0], at, part[1]);
      return (f32x16)_mm512_mask_blend_ps(upper, low,
                                          _mm512_permutex2var_ps(part[2], at, part[3]));
    }
    const __m512i within = _mm512_and_si512(at, _mm512_set1_epi32((1 << BITS) - 1));
    return (f32x16)_mm512_i32gather_ps(within, memory, 4);
#elif defined(__AVX2__)
    return by_parts<float>([this](auto index) { return look_up((__m256i)index); }, index);
#else
#if defined(__aarch64__)
    if constexpr (BITS <= 4)  // the 64 bytes of the table are one byte look-up per lane of four
      return by_parts<float>([this](auto bytes) { return vqtbl4q_u8(part[0], (uint8x16_t)bytes); },
                             (index & 15u) * 0x04040404u + 0x03020100u);
#endif
    return by_parts<float>(
        [this](auto index) {
          f32x16::Part values;
          for (int i = 0; i < f32x16::EACH; ++i) values[i] = memory[index[i] & ((1u << BITS) - 1)];
          return values;
        },
        index);
#endif
  }

#if defined(__AVX2__) && !defined(__AVX512F__)
  ALWAYS_INLINE __m256 look_up(__m256i at) const {
    if constexpr (BITS <= 3) return _mm256_permutevar8x32_ps(part[0], at);
    if constexpr (BITS == 4) {
      const __m256 low = _mm256_permutevar8x32_ps(part[0], at);
      const __m256 high = _mm256_permutevar8x32_ps(part[1], at);
      return _mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32(at, 28));
    }
    const __m256i within = _mm256_and_si256(at, _mm256_set1_epi32((1 << BITS) - 1));
    return _mm256_i32gather_ps(memory, within, 4);
  }
#endif
};

// Sixteen bytes, one to a lane.
ALWAYS_INLINE u32x16 widen_bytes(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return (u32x16)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
  const __m256i half[2] = {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)bytes)),
                           _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(bytes + 8)))};
  return load<u32x16>(half);
#else
  uint32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = bytes[i];
  return load<u32x16>(lanes);
#endif
}

// Sixteen 16-bit words, one to a lane, and back.
ALWAYS_INLINE u32x16 widen_words(const uint16_t* words) {
#if defined(__AVX512F__)
  return (u32x16)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)words));
#else
  uint32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = words[i];
  return load<u32x16>(lanes);
#endif
}

ALWAYS_INLINE void store_low_words(uint16_t* to, const u32x16& words) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16((__m512i)words));
#else
  uint32_t lanes[16];
  store(lanes, words);
  for (int i = 0; i < 16; ++i) to[i] = uint16_t(lanes[i]);
#endif
}

// Sixteen values of a table in memory: for rare cases. Where it is one instruction it stands in the
// loops that have them, since a call would keep their sums in memory; else it is kept out of them.
#if defined(__AVX512F__)
ALWAYS_INLINE f32x16 lookup(const float* table, u32x16 index) {
  return (f32x16)_mm512_i32gather_ps((__m512i)index, table, 4);
}
#else
[[maybe_unused]] __attribute__((noinline)) static f32x16 lookup(const float* table, u32x16 index) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = table[index[i]];
  return load<f32x16>(values);
}
#endif

}  // namespace blockscale::ISA_NAMESPACE
