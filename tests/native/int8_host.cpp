// int8 products for VNNI and for AMX, with instructions that are emulated, beside the portable ones:
// the same bits. Compiled once for each part:
//
//     PART_PORTABLE, PART_VNNI    int8.h
//     PART_TILES                  int8_amx.h
//     PART_ROWS                   int8_rows.h
//     PART_MAIN                   products of random weights
#if defined(PART_PORTABLE)
#define ISA_NAMESPACE scalar
#include "products/int8.h"
#elif defined(PART_VNNI)
#define ISA_NAMESPACE vnni
#include "products/int8.h"
#elif defined(PART_TILES)
#define ISA_NAMESPACE amx
#include "products/int8_amx.h"
#elif defined(PART_ROWS)
#define ISA_NAMESPACE exact_scalar
#include "exact/int8_rows.h"

namespace blockscale::exact_scalar {
void arrange_int8(const Int8Arrangement& work, int64_t, int64_t) {
  with_runs(work.call.format, [&](auto bits, auto run) {
    for (int64_t p = 0; p < work.row_tile_count; ++p)
      for (int place = 0; place < work.row_tiles[p].rows; ++place)
        for (int64_t first = 0; first < work.call.k; first += INT8_COLUMNS)
          arrange_row<decltype(bits)::value, decltype(run)::value>(work, work.row_tiles[p], place,
                                                                       first);
  });
}
}  // namespace blockscale::exact_scalar
#else
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "exact/exact.h"
#include "products/int8_table.h"
#include "cpu_tiles.h"
#include "products/int8_runs.h"

using namespace blockscale;

namespace {

uint32_t state = 1;
uint32_t random_bits() { return (state = state * 1664525u + 1013904223u) >> 8; }
float random_number() {
  return float(int(random_bits() % 2001) - 1000) / 300 * std::exp(float(random_bits() % 100) / 20);
}

struct Rows {
  std::vector<uint32_t> words;
  std::vector<float> scales;
  std::vector<int32_t> starts;
  Int8Rows view;

  Rows(const Matmul& call, int most, int offset) {
    const int64_t end = call.row_begin[1];
    std::vector<RowTile> row_tiles;
    int64_t before = 0;
    while (before < end) {
      const int rows = most == AMX_TILE_M ? most : tile_rows(end - before, most);
      row_tiles.push_back({before, before + rows < end ? before + rows : end, before, rows});
      before += rows;
    }
    const int run = int8_run(call.format.block);
    words.resize(size_t(before * call.k / 4));
    scales.resize(size_t(before * call.k / run));
    starts.resize(scales.size());
    view = {words.data(), scales.data(), starts.data()};
    exact_scalar::arrange_int8({call, row_tiles.data(), int64_t(row_tiles.size()), offset, view, 1}, 0, 0);
  }
};

bool agree(int bits, int block, int scale_bytes, int64_t n, int64_t k, int64_t m, bool gated) {
  std::vector<float> table(16), scale_table(256), x(size_t(m * k));
  for (size_t i = 0; i < 16; ++i)
    table[i] = float(i % (1u << bits)) / float((1 << bits) - 1) * 2 - 1;
  for (int i = 0; i < 256; ++i)  // those outside 100 to 150 need the table
    scale_table[size_t(i)] = i < 100 || i > 150 ? 0.01f * float(i) : std::ldexp(1.0f, i - 127);
  for (float& number : x) number = random_number();
  if (m == 5) x[37] = NAN;
  const int64_t tiles = cpu_tiles::tiles(n);
  std::vector<uint8_t> codes(size_t(tiles * cpu_tiles::tile_words(k, bits) * 4));
  std::vector<uint8_t> scales(size_t(tiles * cpu_tiles::tile_scales(k, block) * scale_bytes));
  for (uint8_t& byte : codes) byte = uint8_t(random_bits());
  for (uint8_t& byte : scales)
    byte = uint8_t(random_bits() % 40 ? 110 + random_bits() % 30 : random_bits());
  if (scale_bytes == 4)
    for (size_t i = 0; i < scales.size(); i += 4) {
      const float scale = std::fabs(random_number());
      std::memcpy(scales.data() + i, &scale, 4);
    }
  const float tensor_scale = 0.37f;
  const int64_t row_begin[2] = {0, m};
  std::vector<float> out[3];

  Matmul call{};
  call.format = {TABLE, bits, block, scale_bytes, table.data(), scale_table.data(), 100, 51, 23, 0};
  call.up_table = table.data();
  call.gate = call.up = {codes.data(), scales.data(), &tensor_scale, nullptr, FLOAT32};
  call.groups = 1;
  call.n = n;
  call.k = k;
  call.row_begin = row_begin;
  call.x = x.data();
  call.x_stride = k;
  call.x_dtype = FLOAT32;
  call.out_stride = n;
  call.out_dtype = FLOAT32;
  call.activation = gated ? SILU : NONE;
  const IntegerTable one = integer_table(table.data(), bits), both[2] = {one, one};
  const Rows portable(call, rows_at_once(SCALAR), 0), vnni_rows(call, rows_at_once(AVX512), 128);
  const Rows tile_rows(call, AMX_TILE_M, 0);
  void* scratch = std::aligned_alloc(64, size_t(amx::int8_scratch(m) + 63) / 64 * 64);
  for (int way = 0; way < 3; ++way) {
    out[way].assign(size_t(m * n), NAN);
    call.out = out[way].data();
    for (int64_t t = 0; t < tiles; ++t) {
      if (way == 0) scalar::int8(call, both, portable.view, 0, t, nullptr);
      if (way == 1) vnni::int8(call, both, vnni_rows.view, 0, t, nullptr);
      if (way == 2) amx::int8_amx(call, both, tile_rows.view, 0, t, static_cast<uint8_t*>(scratch));
    }
  }
  std::free(scratch);
  const size_t bytes = out[0].size() * sizeof(float);
  return !std::memcmp(out[0].data(), out[1].data(), bytes) &&
         !std::memcmp(out[0].data(), out[2].data(), bytes);
}

}  // namespace

int main() {
  int differing = 0;
  for (int bits : {2, 4})
    for (int block : {16, 32, 64, 128})
      for (int scale_bytes : {1, 4})
        for (int64_t k : {128, 640, 1152})
          for (int64_t m : {1, 2, 3, 5, 8, 9, 12, 16, 17, 33, 50}) {
            if (m > 17 && k > 128) continue;
            const int64_t n = m % 2 ? 17 : 1;
            if (agree(bits, block, scale_bytes, n, k, m, m % 3 == 0)) continue;
            ++differing;
            std::printf("%d bits, blocks of %d, scales of %d bytes, k %d, m %d differ\n", bits, block,
                        scale_bytes, int(k), int(m));
          }
  return differing != 0;
}
#endif
