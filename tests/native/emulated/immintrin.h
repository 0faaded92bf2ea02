// The few instructions of AVX-512 and AMX that products by tiles and of int8 use, in plain C++: so that these
// products can be run on any machine. Tiles stop the program where the hardware would raise an error.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

// Most of the time is spent in these, whatever the rest is compiled with.
#pragma GCC push_options
#pragma GCC optimize("O1")

typedef long long __m128i __attribute__((vector_size(16), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef uint16_t __mmask16;
typedef uint32_t __mmask32;
typedef uint64_t __mmask64;

namespace emulated {

template <class T, class V>
struct Lanes {
  static constexpr int COUNT = int(sizeof(V) / sizeof(T));
  T lane[COUNT];
  Lanes() = default;
  explicit Lanes(const V& vector) { std::memcpy(lane, &vector, sizeof lane); }
  T& operator[](int i) { return lane[i]; }
  operator V() const {
    V vector;
    std::memcpy(&vector, lane, sizeof lane);
    return vector;
  }
};

// Each lane of the result from its number.
template <class T, class V, class Each>
V made(Each each) {
  Lanes<T, V> to;
  for (int i = 0; i < Lanes<T, V>::COUNT; ++i) to[i] = T(each(i));
  return to;
}

template <class Mask, class Test>
Mask mask(Test test) {
  uint64_t bits = 0;
  for (int i = 0; i < int(8 * sizeof(Mask)); ++i) bits |= uint64_t(test(i)) << i;
  return Mask(bits);
}

}  // namespace emulated

inline __m128i _mm_loadu_si128(const __m128i* from) {
  __m128i to;
  std::memcpy(&to, from, sizeof to);
  return to;
}
inline __m256i _mm256_loadu_si256(const __m256i* from) {
  __m256i to;
  std::memcpy(&to, from, sizeof to);
  return to;
}
inline void _mm256_storeu_si256(__m256i* to, __m256i x) { std::memcpy(to, &x, sizeof x); }
inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_set1_epi32(int x) {
  return emulated::made<int32_t, __m512i>([&](int) { return x; });
}
inline __m512i _mm512_set1_epi8(char x) {
  return emulated::made<char, __m512i>([&](int) { return x; });
}
inline __m512i _mm512_broadcast_i32x4(__m128i x) {
  emulated::Lanes<int32_t, __m128i> from(x);
  return emulated::made<int32_t, __m512i>([&](int i) { return from[i % 4]; });
}
inline __m512i _mm512_cvtepu8_epi32(__m128i x) {
  emulated::Lanes<uint8_t, __m128i> from(x);
  return emulated::made<uint32_t, __m512i>([&](int i) { return from[i]; });
}
inline __m512i _mm512_cvtepu16_epi32(__m256i x) {
  emulated::Lanes<uint16_t, __m256i> from(x);
  return emulated::made<uint32_t, __m512i>([&](int i) { return from[i]; });
}
inline __m256i _mm512_cvtepi32_epi16(__m512i x) {
  emulated::Lanes<uint32_t, __m512i> from(x);
  return emulated::made<uint16_t, __m256i>([&](int i) { return from[i]; });
}
inline __m512i _mm512_shuffle_epi8(__m512i x, __m512i index) {
  emulated::Lanes<uint8_t, __m512i> from(x), at(index);
  return emulated::made<uint8_t, __m512i>(
      [&](int i) { return at[i] & 0x80 ? 0 : from[i / 16 * 16 + (at[i] & 15)]; });
}
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i x, __m512i y) {
  emulated::Lanes<int32_t, __m512i> sum(sums);
  emulated::Lanes<uint8_t, __m512i> a(x);
  emulated::Lanes<int8_t, __m512i> b(y);
  for (int i = 0; i < 64; ++i) sum[i / 4] += int(a[i]) * int(b[i]);
  return sum;
}
inline __mmask16 _mm512_cmpge_epu32_mask(__m512i x, __m512i y) {
  emulated::Lanes<uint32_t, __m512i> a(x), b(y);
  return emulated::mask<__mmask16>([&](int i) { return a[i] >= b[i]; });
}
inline __mmask16 _mm512_movepi32_mask(__m512i x) {
  emulated::Lanes<int32_t, __m512i> a(x);
  return emulated::mask<__mmask16>([&](int i) { return a[i] < 0; });
}
inline __m512 _mm512_i32gather_ps(__m512i index, const float* from, int) {
  emulated::Lanes<int32_t, __m512i> at(index);
  return emulated::made<float, __m512>([&](int i) { return from[at[i]]; });
}

inline __m512 _mm512_loadu_ps(const float* from) {
  __m512 to;
  std::memcpy(&to, from, sizeof to);
  return to;
}
inline __m512i _mm512_load_si512(const void* from) {
  __m512i to;
  std::memcpy(&to, from, sizeof to);
  return to;
}
inline __m512 _mm512_permutexvar_ps(__m512i index, __m512 x) {
  emulated::Lanes<uint32_t, __m512i> at(index);
  emulated::Lanes<float, __m512> from(x);
  return emulated::made<float, __m512>([&](int i) { return from[at[i] % 16]; });
}
inline __m512 _mm512_permutex2var_ps(__m512 x, __m512i index, __m512 y) {
  emulated::Lanes<uint32_t, __m512i> at(index);
  emulated::Lanes<float, __m512> low(x), high(y);
  return emulated::made<float, __m512>(
      [&](int i) { return at[i] & 16 ? high[at[i] % 16] : low[at[i] % 16]; });
}
inline __m512i _mm512_permutexvar_epi16(__m512i index, __m512i x) {
  emulated::Lanes<uint16_t, __m512i> at(index), from(x);
  return emulated::made<uint16_t, __m512i>([&](int i) { return from[at[i] % 32]; });
}
inline __m512i _mm512_permutex2var_epi16(__m512i x, __m512i index, __m512i y) {
  emulated::Lanes<uint16_t, __m512i> at(index), low(x), high(y);
  return emulated::made<uint16_t, __m512i>(
      [&](int i) { return at[i] & 32 ? high[at[i] % 32] : low[at[i] % 32]; });
}
inline __m512 _mm512_mask_blend_ps(__mmask16 which, __m512 no, __m512 yes) {
  emulated::Lanes<float, __m512> a(no), b(yes);
  return emulated::made<float, __m512>([&](int i) { return which >> i & 1 ? b[i] : a[i]; });
}
inline __mmask16 _mm512_test_epi32_mask(__m512i x, __m512i y) {
  emulated::Lanes<uint32_t, __m512i> both(x & y);
  return emulated::mask<__mmask16>([&](int i) { return both[i] != 0; });
}
inline __mmask32 _mm512_test_epi16_mask(__m512i x, __m512i y) {
  emulated::Lanes<uint16_t, __m512i> both(x & y);
  return emulated::mask<__mmask32>([&](int i) { return both[i] != 0; });
}
inline __mmask64 _mm512_testn_epi8_mask(__m512i x, __m512i y) {
  emulated::Lanes<uint8_t, __m512i> both(x & y);
  return emulated::mask<__mmask64>([&](int i) { return both[i] == 0; });
}
inline __mmask64 _mm512_cmpeq_epi8_mask(__m512i x, __m512i y) {
  emulated::Lanes<uint8_t, __m512i> a(x), b(y);
  return emulated::mask<__mmask64>([&](int i) { return a[i] == b[i]; });
}
inline __m512i _mm512_set1_epi16(short x) {
  return emulated::made<int16_t, __m512i>([&](int) { return x; });
}
inline __m512i _mm512_mask_add_epi16(__m512i no, __mmask32 which, __m512i x, __m512i y) {
  emulated::Lanes<uint16_t, __m512i> kept(no), a(x), b(y);
  return emulated::made<uint16_t, __m512i>(
      [&](int i) { return which >> i & 1 ? a[i] + b[i] : kept[i]; });
}
inline __m512i _mm512_add_epi16(__m512i x, __m512i y) {
  return _mm512_mask_add_epi16(x, ~0u, x, y);
}
inline __m512i _mm512_slli_epi16(__m512i x, unsigned by) {
  emulated::Lanes<uint16_t, __m512i> from(x);
  return emulated::made<uint16_t, __m512i>([&](int i) { return by < 16 ? from[i] << by : 0; });
}
inline __m512i _mm512_srai_epi16(__m512i x, unsigned by) {
  emulated::Lanes<int16_t, __m512i> from(x);
  return emulated::made<int16_t, __m512i>([&](int i) { return from[i] >> (by < 16 ? by : 15); });
}

namespace emulated {

struct Tiles {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config;
  bool configured = false;
  uint8_t data[8][16][64];

  void check(bool sound) const {
    if (!sound) std::abort();
  }
  void configure(const void* from) {
    std::memcpy(&config, from, 64);
    check(config.palette == 1 && config.start_row == 0);
    for (int t = 0; t < 16; ++t) {
      check(config.row_bytes[t] <= 64 && config.rows[t] <= 16);
      check(t < 8 || (config.row_bytes[t] == 0 && config.rows[t] == 0));
      check((config.row_bytes[t] == 0) == (config.rows[t] == 0));
    }
    std::memset(data, 0, sizeof data);
    configured = true;
  }
  void zero(int t) {
    check(configured && config.rows[t]);
    std::memset(data[t], 0, sizeof data[t]);
  }
  void load(int t, const void* from, int64_t stride) {
    zero(t);
    for (int r = 0; r < config.rows[t]; ++r)
      std::memcpy(data[t][r], static_cast<const uint8_t*>(from) + r * stride, config.row_bytes[t]);
  }
  void store(int t, void* to, int64_t stride) const {
    check(configured && config.rows[t]);
    for (int r = 0; r < config.rows[t]; ++r)
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, data[t][r], config.row_bytes[t]);
  }
  // add(sum, a, b) takes four bytes of a row of a and of a column of b.
  template <class Sum, class Add>
  void multiply(int to, int a, int b, Add add) {
    check(configured && config.rows[to] == config.rows[a]);
    check(config.row_bytes[to] == config.row_bytes[b]);
    check(config.row_bytes[a] == 4 * config.rows[b]);
    for (int r = 0; r < config.rows[to]; ++r)
      for (int c = 0; c < config.row_bytes[to] / 4; ++c) {
        Sum sum;
        std::memcpy(&sum, data[to][r] + 4 * c, 4);
        for (int k = 0; k < config.rows[b]; ++k)
          sum = add(sum, data[a][r] + 4 * k, data[b][k] + 4 * c);
        std::memcpy(data[to][r] + 4 * c, &sum, 4);
      }
  }
};

inline Tiles tiles;

}  // namespace emulated

inline void _tile_loadconfig(const void* from) { emulated::tiles.configure(from); }
inline void _tile_release() { emulated::tiles.configured = false; }
inline void _tile_zero(int t) { emulated::tiles.zero(t); }
inline void _tile_loadd(int t, const void* from, int64_t stride) {
  emulated::tiles.load(t, from, stride);
}
inline void _tile_stored(int t, void* to, int64_t stride) { emulated::tiles.store(t, to, stride); }
inline void _tile_dpbssd(int to, int a, int b) {
  emulated::tiles.multiply<int32_t>(to, a, b, [](int32_t sum, const uint8_t* x, const uint8_t* y) {
    for (int i = 0; i < 4; ++i) sum += int(int8_t(x[i])) * int(int8_t(y[i]));
    return sum;
  });
}
// Subnormal numbers count as zero.
inline void _tile_dpbf16ps(int to, int a, int b) {
  emulated::tiles.multiply<float>(to, a, b, [](float sum, const uint8_t* x, const uint8_t* y) {
    const auto number = [](const uint8_t* from) {
      const uint32_t bits = uint32_t(from[0]) << 16 | uint32_t(from[1]) << 24;
      float value;
      std::memcpy(&value, &bits, 4);
      return bits & 0x7f800000u ? value : 0.0f;
    };
    for (int i = 0; i < 4; i += 2) sum += number(x + i) * number(y + i);
    return sum;
  });
}

#pragma GCC pop_options
