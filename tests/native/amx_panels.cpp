// Panels of products for AMX (amx.h), with instructions that are emulated: what they add up, and which of them they
// leave to `stream`. Columns past n are padded as the cpu_tiles layout does, with zero bytes. Compiled for each part:
//
//     PART_TILES    amx.h
//     PART_MAIN     products of random weights, whose sums are exact in float32
#if defined(PART_TILES)
#define ISA_NAMESPACE amx
#include "products/amx.h"
#else
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "convert.h"
#include "cpu_tiles.h"
#include "products/kernels.h"

using namespace blockscale;

namespace {

constexpr int TILE_M = 16, TILE_NUMBERS = TILE_M * cpu_tiles::CHUNK;

uint32_t state = 1;
uint32_t random_bits() { return (state = state * 1664525u + 1013904223u) >> 8; }

struct Case {
  int decoder, bits, block;
  AmxFacts facts;
};

struct Product {
  const Case& of;
  int64_t n, k, m;
  std::vector<float> table, scale_table, x, out;
  std::vector<uint8_t> codes, scales;
  std::vector<double> sums;
  std::vector<uint16_t> x_tiles;

  Product(const Case& of, int64_t n, int64_t k, int64_t m)
      : of(of), n(n), k(k), m(m), table(size_t(1) << of.bits), scale_table(256), x(size_t(m * k)),
        out(size_t(m * n), NAN), sums(size_t(m * n)) {
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = of.decoder == E4M3 ? e4m3(int(i)) : float(int(i) - (1 << of.bits) / 2);
    for (int i = 0; i < 256; ++i) scale_table[size_t(i)] = i < 255 ? std::ldexp(1.0f, i - 127) : NAN;
    for (float& number : x) number = float(int(random_bits() % 9) - 4);
    const int64_t tiles = cpu_tiles::tiles(n), chunks = cpu_tiles::chunks(k);
    codes.resize(size_t(tiles * cpu_tiles::tile_words(k, of.bits) * 4));
    scales.resize(size_t(tiles * cpu_tiles::tile_scales(k, of.block)));
    for (int64_t column = 0; column < n; ++column) fill(column);
    x_tiles.resize(size_t((m + 31) / 32 * 2 * chunks * TILE_NUMBERS));
    for (int64_t row = 0; row < m; ++row)
      for (int64_t i = 0; i < k; ++i)
        x_tiles[size_t((row / TILE_M * chunks + i / 32) * TILE_NUMBERS + row % TILE_M * 32 + i % 32)] =
            to_bfloat16(x[size_t(row * k + i)]);
  }

  static float e4m3(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size = exponent ? std::ldexp(float(8 + mantissa), exponent - 10) : std::ldexp(float(mantissa), -9);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -size : size;
  }

  uint8_t& scale(int64_t column, int64_t block) {
    return scales[size_t(column / 16 * cpu_tiles::tile_scales(k, of.block) + block * 16 + column % 16)];
  }

  void fill(int64_t column) {
    for (int64_t b = 0; b < k / of.block; ++b) scale(column, b) = uint8_t(125 + random_bits() % 4);
    for (int64_t i = 0; i < k; ++i) {
      // Exponents of 8-bit floats are kept together, and now and then one is subnormal.
      const uint32_t code = of.decoder != E4M3        ? random_bits() % (1u << of.bits)
                            : random_bits() % 30 == 0 ? random_bits() % 8
                                                      : (random_bits() % 2 << 7 | 0x30 | random_bits() % 16);
      put(column, i, code);
      for (int64_t row = 0; row < m; ++row)
        sums[size_t(row * n + column)] +=
            double(table[code]) * scale_table[scale(column, i / of.block)] * x[size_t(row * k + i)];
    }
  }

  void put(int64_t column, int64_t i, uint32_t code) {
    const int pair = int(i % 32 / 2), half = int(i % 2);
    auto* words = reinterpret_cast<uint32_t*>(codes.data()) +
                  column / 16 * cpu_tiles::tile_words(k, of.bits) + i / 32 * of.bits * 16 + column % 16;
    for (int p = 0; p < cpu_tiles::piece_count(of.bits, pair); ++p) {
      const cpu_tiles::Piece at = cpu_tiles::piece(of.bits, pair, p);
      words[at.word * 16] |= (code >> at.to & ((1u << at.width) - 1)) << (16 * half + at.shift);
    }
  }

  // Panels that are done.
  int multiply() {
    const int64_t row_begin[2] = {0, m};
    Matmul call{};
    call.format = {of.decoder, of.bits, of.block, 1, table.data(), scale_table.data(), 1, 254, 23, 0};
    call.up_table = table.data();
    call.gate = {codes.data(), scales.data(), nullptr, nullptr, FLOAT32};
    call.groups = 1;
    call.n = n;
    call.k = k;
    call.row_begin = row_begin;
    call.out = out.data();
    call.out_stride = n;
    call.out_dtype = FLOAT32;
    call.activation = NONE;
    auto* stage = static_cast<uint8_t*>(std::aligned_alloc(64, size_t(amx::amx_stage_bytes(call.format))));
    std::vector<float> all_sums(size_t((m + 31) / 32 * 32 * 32));
    int done = 0;
    for (int64_t tile = 0; tile < cpu_tiles::tiles(n); tile += 2)
      done += amx::multiply_panel(call, reinterpret_cast<uint8_t*>(x_tiles.data()), 0, tile, of.facts,
                                  {stage, all_sums.data()});
    std::free(stage);
    return done;
  }
};

const Case CASES[] = {
    {TABLE, 4, 32, {true, true, true}},   // scales are added to exponents
    {TABLE, 5, 32, {true, true, true}},   // some pairs in spare bits
    {TABLE, 6, 64, {true, true, true}},
    {E4M3, 8, 32, {true, true, true}},
    {TABLE, 4, 16, {false, true, true}},  // two scales to a chunk: products in float32
    {E4M3, 8, 16, {false, false, true}},
};

int wrong = 0;
void expect(bool right, const char* what, const Product& product) {
  if (right) return;
  ++wrong;
  std::printf("%d bits, blocks of %d, n %d, m %d: %s\n", product.of.bits, product.of.block, int(product.n),
              int(product.m), what);
}

}  // namespace

int main() {
  for (const Case& each : CASES)
    for (int64_t n : {1, 16, 32, 40, 49})
      for (int64_t m : {1, 17, 40}) {
        const int panels = int((cpu_tiles::tiles(n) + 1) / 2);
        Product product(each, n, 192, m);
        expect(product.multiply() == panels, "a panel is left", product);
        bool same = true;
        for (size_t i = 0; i < product.out.size(); ++i) same = same && product.out[i] == float(product.sums[i]);
        expect(same, "sums differ", product);
        if (m > 1) continue;
        for (uint8_t scale : {uint8_t(0), uint8_t(26), uint8_t(228), uint8_t(255)}) {
          product.scale(n - 1, 1) = scale;
          expect(product.multiply() == panels - 1, "an unsafe scale is taken", product);
        }
      }
  return wrong != 0;
}
#endif
