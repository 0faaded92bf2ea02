// One product of some rows by one instruction set, one thread: for a tool that counts instructions.
//
//     one_product CASE ROWS N ISA [ALGORITHM]     a weight of N rows and 1024 columns
//
// by the case's algorithm, or another: gemm or, on ARM, slices, or bfmmla, which has x in bfloat16. It
// prints the sum of the results, so that a wrong one is seen too. With 0 rows it does all but multiply; without
// arguments it lists the cases.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "abi.h"
#include "convert.h"
#include "cpu_tiles.h"

using namespace blockscale;

extern "C" int64_t bs_stream(const Matmul* call);
extern "C" int64_t bs_gemm(const Matmul* call);
extern "C" int64_t bs_int8(const Matmul* call);
#if defined(__aarch64__)
extern "C" int64_t bs_bfmmla(const Matmul* call);
extern "C" int64_t bs_slices(const Matmul* call);
#endif

using Multiply = decltype(&bs_stream);

struct Case {
  const char* name;
  int decoder, bits, block;
  Multiply multiply = bs_stream;
};

Multiply named(const char* algorithm) {
#if defined(__aarch64__)
  if (!std::strcmp(algorithm, "bfmmla")) return bs_bfmmla;
  if (!std::strcmp(algorithm, "slices")) return bs_slices;
#endif
  return bs_gemm;
}

const Case CASES[] = {
    {"2 bits", TABLE, 2, 32}, {"3 bits", TABLE, 3, 32},        {"4 bits", TABLE, 4, 32},
    {"5 bits", TABLE, 5, 32}, {"6 bits", TABLE, 6, 32},        {"8 bits, e4m3", E4M3, 8, 32},
    {"8 bits, e5m2", E5M2, 8, 32}, {"4 bits, blocks of 16", TABLE, 4, 16},
    {"2 bits, int8", TABLE, 2, 32, bs_int8},
    {"4 bits, int8", TABLE, 4, 32, bs_int8},
    {"4 bits, blocks of 16, int8", TABLE, 4, 16, bs_int8},
};

int run(const Case& which, int64_t rows, int64_t n, int isa, const char* algorithm) {
  constexpr int64_t k = 1024, most = 64;
  std::vector<float> table(256), scale_table(256), x(most * k), out(size_t(most * n));
  // Blocks of 16 are NVFP4's, with multiples of a half, and 6 bits are floats, whose lower halves are zero. Others have
  // codebooks.
  const int half = 1 << (which.bits - 1);
  for (int i = 0; i < 2 * half; ++i)
    table[size_t(i)] = float(i - half + 1) / float(which.block == 16 ? 2 : which.bits == 6 ? 8 : half + 1);
  scale_table[127] = 1.0f;
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(i % 9) - 4) / 4;
  std::vector<uint16_t> short_x(x.size());
  for (size_t i = 0; i < x.size(); ++i) short_x[i] = to_bfloat16(x[i]);
  const bool shortened = algorithm && !std::strcmp(algorithm, "bfmmla");
  std::vector<uint8_t> codes(size_t(cpu_tiles::tiles(n) * cpu_tiles::tile_words(k, which.bits) * 4));
  uint32_t state = 1;
  for (uint8_t& byte : codes) {
    state = state * 1664525u + 1013904223u;
    byte = uint8_t(state >> 24);
    if (which.bits == 8) byte = uint8_t((byte & 0x9f) | 0x20);  // neither subnormal nor special
  }
  std::vector<uint8_t> scales(size_t(cpu_tiles::tiles(n) * cpu_tiles::tile_scales(k, which.block)), 127);
  const int64_t row_begin[2] = {0, rows};

  Matmul call{};
  call.format = {which.decoder, which.bits, which.block, 1, table.data(), scale_table.data(),
                 1, 254, 23, 0};
  call.up_table = table.data();
  call.gate = {codes.data(), scales.data(), nullptr, nullptr, FLOAT32};
  call.up = call.gate;
  call.groups = 1;
  call.n = n;
  call.k = k;
  call.row_begin = row_begin;
  call.x = shortened ? static_cast<const void*>(short_x.data()) : x.data();
  call.x_stride = k;
  call.x_dtype = shortened ? BFLOAT16 : FLOAT32;
  call.out = out.data();
  call.out_stride = n;
  call.out_dtype = FLOAT32;
  call.activation = NONE;
  call.isa = isa;
  call.threads = 1;
  if (rows && (algorithm ? named(algorithm) : which.multiply)(&call)) return 1;
  double sum = 0;
  for (float y : out) sum += y;
  std::printf("%.9g\n", sum);
  return 0;
}

int main(int count, char** arguments) {
  for (const Case& each : CASES) {
    if (count < 5) std::puts(each.name);
    else if (!std::strcmp(each.name, arguments[1]))
      return run(each, std::atoi(arguments[2]), std::atoi(arguments[3]), std::atoi(arguments[4]),
                 count > 5 ? arguments[5] : nullptr);
  }
  return count < 5 ? 0 : 2;
}
