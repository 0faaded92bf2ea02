// Sixteen lanes of float32 or uint32, whatever the machine: GCC and Clang lower 64-byte vectors to
// the registers there are. Only table look-ups need instructions by name.
//
// Compiled once for each instruction set, in a namespace of its own (ISA_NAMESPACE).
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Inner loops are one function after inlining, whatever the compiler thinks of their size.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace blockscale::ISA_NAMESPACE {

typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

template <class V>
inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
inline void store(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

inline f32x16 splat(float value) { return value - f32x16{}; }
inline u32x16 splat(uint32_t value) { return value | u32x16{}; }
inline f32x16 as_float(u32x16 bits) { return (f32x16)bits; }
inline u32x16 as_bits(f32x16 value) { return (u32x16)value; }
inline f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) { return mask ? yes : no; }

// Whether any lane of the result of a comparison is set.
inline bool any(i32x16 mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  __m256i half[2];
  std::memcpy(half, &mask, sizeof half);
  return _mm256_movemask_epi8(_mm256_or_si256(half[0], half[1])) != 0;
#else
  typedef uint64_t u64x8 __attribute__((vector_size(64)));
  const u64x8 wide = (u64x8)mask;
  return ((wide[0] | wide[1] | wide[2] | wide[3]) | (wide[4] | wide[5] | wide[6] | wide[7])) != 0;
#endif
}

inline bool any_at_least(u32x16 value, uint32_t least) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epu32_mask((__m512i)value, _mm512_set1_epi32(int(least))) != 0;
#else
  return any((i32x16)(value >= least));
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
    float wide[64];
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
  f32x16 operator[](u32x16 index) const {
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
    __m256i half[2];
    __m256 value[2];
    std::memcpy(half, &index, sizeof half);
    for (int i = 0; i < 2; ++i) {
      if constexpr (BITS <= 3) {
        value[i] = _mm256_permutevar8x32_ps(part[0], half[i]);
      } else if constexpr (BITS == 4) {
        const __m256 low = _mm256_permutevar8x32_ps(part[0], half[i]);
        const __m256 high = _mm256_permutevar8x32_ps(part[1], half[i]);
        value[i] = _mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32(half[i], 28));
      } else {
        const __m256i within = _mm256_and_si256(half[i], _mm256_set1_epi32((1 << BITS) - 1));
        value[i] = _mm256_i32gather_ps(memory, within, 4);
      }
    }
    f32x16 out;
    std::memcpy(&out, value, sizeof out);
    return out;
#else
#if defined(__aarch64__)
    if constexpr (BITS <= 4) {  // the 64 bytes of the table are one byte look-up per lane of four
      const u32x16 bytes = (index & 15u) * 0x04040404u + 0x03020100u;
      uint8x16_t quarter[4];
      std::memcpy(quarter, &bytes, sizeof quarter);
      for (auto& q : quarter) q = vqtbl4q_u8(part[0], q);
      f32x16 out;
      std::memcpy(&out, quarter, sizeof out);
      return out;
    }
#endif
    f32x16 out;
    for (int i = 0; i < 16; ++i) out[i] = memory[index[i] & ((1u << BITS) - 1)];
    return out;
#endif
  }
};

// Sixteen bytes, one to a lane.
inline u32x16 widen_bytes(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return (u32x16)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
  const __m256i half[2] = {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)bytes)),
                           _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(bytes + 8)))};
  return load<u32x16>(half);
#else
  u32x16 out;
  for (int i = 0; i < 16; ++i) out[i] = bytes[i];
  return out;
#endif
}

// Sixteen values of a table in memory: for rare cases, so kept out of the loops that have them.
__attribute__((noinline)) static f32x16 lookup(const float* table, u32x16 index) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_i32gather_ps((__m512i)index, table, 4);
#else
  f32x16 out;
  for (int i = 0; i < 16; ++i) out[i] = table[index[i]];
  return out;
#endif
}

}  // namespace blockscale::ISA_NAMESPACE
