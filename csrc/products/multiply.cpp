// Each algorithm, over every tile of every group, on all threads.
#include "products/multiply.h"

#include <algorithm>
#include <cmath>

#include "cpu_tiles.h"
#include "products/int8_table.h"
#include "products/kernels.h"
#include "products/pick.h"
#include "products/slice_rows.h"
#include "products/x_rows.h"
#include "runtime/memory.h"
#include "runtime/threads.h"

namespace blockscale {
namespace {

// Calls work(group, tile, memory) for every `step`-th tile of every group that has rows, on all threads; `memory`
// has `bytes` and is a thread's own.
template <class Work>
void for_each_tile(const Matmul& call, int64_t step, int64_t bytes, Work work) {
  const int64_t tiles = (cpu_tiles::tiles(call.n) + step - 1) / step;
  Vector<int64_t> busy;  // experts without rows cost nothing
  for (int64_t g = 0; g < call.groups; ++g)
    if (call.row_begin[g] < call.row_begin[g + 1]) busy.push_back(g);
  // Short items, so that no thread waits long for another at the end.
  const int64_t all = int64_t(busy.size()) * tiles, items_each = 128;
  const int64_t grain = std::max<int64_t>(all / (call.threads * items_each), 1);
  const int64_t items = (all + grain - 1) / grain;
  parallel_for(items, call.threads, bytes, [&](int64_t item, uint8_t* memory) {
    const int64_t last = std::min((item + 1) * grain, all);
    for (int64_t i = item * grain; i < last; ++i)
      work(busy[size_t(i / tiles)], i % tiles * step, memory);
  });
}

int64_t most_rows(const Matmul& call) {
  int64_t most = 0;
  for (int64_t g = 0; g < call.groups; ++g) most = std::max(most, rows_of(call, g));
  return most;
}

#if defined(__x86_64__)
int significant_bits(const float* table, int count) {
  int most = 1;
  for (int i = 0; i < count; ++i) {
    const uint32_t mantissa = float_to_bits(table[i]) & 0x7fffffu;
    if (table[i] == table[i] && mantissa) most = std::max(most, 24 - __builtin_ctz(mantissa));
  }
  return most;
}

// Whether a scale that AMX need not check (2^-100 to 2^100) may be added to the exponent of every entry.
bool takes_exponents(const float* table, int count) {
  for (int i = 0; i < count; ++i) {
    if (table[i] != 0 && std::fabs(table[i]) < 0x1p-24f) return false;
  }
  return true;
}

// Of gate and up together.
AmxFacts amx_facts(const Matmul& call) {
  const Format& format = call.format;
  if (format.scale_bytes == 4) return {false, false, true};
  const int entries = 1 << format.bits;
  const int element =
      std::max(significant_bits(format.table, entries), significant_bits(call.up_table, entries));
  const int scale = 24 - int(format.scale_shift);
  bool check = false;
  for (int i = 0; i < 256; ++i) {
    const float value = format.scale_table[i];
    check = check || value > 0x1p100f || (value > 0 && value < 0x1p-100f);
  }
  const bool by_exponents = takes_exponents(format.table, entries) && takes_exponents(call.up_table, entries);
  return {scale == 1 && format.block >= cpu_tiles::CHUNK && by_exponents, element + scale <= 8, check};
}

void multiply_by_amx(const Matmul& call) {
  const AmxRows x(call);
  const int64_t chunks = cpu_tiles::chunks(call.k), stage_bytes = amx::amx_stage_bytes(call.format);
  const int64_t sums = 2 * ((most_rows(call) + 31) / 32) * 32 * 32;
  const AmxFacts facts = amx_facts(call);
  const int64_t panels = (cpu_tiles::tiles(call.n) + 1) / 2, bytes = stage_bytes + sums * int64_t(sizeof(float));
  Vector<uint8_t> done(size_t(call.groups * panels), 1);  // 0: panels with unsafe scales
  for_each_tile(call, 2, bytes, [&](int64_t group, int64_t tile, uint8_t* memory) {
    const AmxScratch scratch{memory, reinterpret_cast<float*>(memory + stage_bytes)};
    const auto* rows = reinterpret_cast<const uint8_t*>(x.data.get()) +
                       x.first_tile[size_t(group)] * chunks * 1024;
    done[size_t(group * panels + tile / 2)] = amx::multiply_panel(call, rows, group, tile, facts, scratch);
  });
  Vector<int64_t> left;
  for (int64_t i = 0; i < call.groups * panels; ++i)
    if (!done[size_t(i)]) left.push_back(i);
  if (left.empty()) return;
  const ArrangedRows rows(call);
  parallel_for(int64_t(left.size()), call.threads, [&](int64_t i) {
    const int64_t group = left[size_t(i)] / panels, tile = left[size_t(i)] % panels * 2;
    for (int64_t t = tile; t < tile + 2 && t < cpu_tiles::tiles(call.n); ++t)
      avx512::stream(call, rows.of(group), group, t);
  });
}
#endif

void multiply_by_stream(const Matmul& call) {
  const ArrangedRows x(call);
  const auto work = float32_kernels(call.isa).stream;
  for_each_tile(call, 1, 0, [&](int64_t group, int64_t tile, uint8_t*) { work(call, x.of(group), group, tile); });
}

void multiply_by_gemm(const Matmul& call) {
  const ArrangedRows x(call);
  const Float32Kernels work = float32_kernels(call.isa);
  const int64_t scratch = work.gemm_scratch(call, most_rows(call)) * int64_t(sizeof(float));
  for_each_tile(call, work.gemm_tiles(), scratch, [&](int64_t group, int64_t tile, uint8_t* memory) {
    work.gemm(call, x.of(group), group, tile, reinterpret_cast<float*>(memory));
  });
}

void multiply_by_int8(const Matmul& call) {
  const Int8Kernel kernel = int8_kernel(call.isa);
  const auto tables = integer_tables(call);
  const ArrangedInt8 x(call, kernel.rows, kernel.tiled, kernel.offset);
  int64_t bytes = 0;
#if defined(__x86_64__)
  if (kernel.tiled) bytes = amx::int8_scratch(most_rows(call));
#elif defined(__aarch64__)
  if (most_rows(call) > kernel.rows) bytes = (1 + (call.activation != NONE)) * int8_stage_bytes(call);
#endif
  for_each_tile(call, 1, bytes, [&](int64_t group, int64_t tile, uint8_t* memory) {
#if defined(__x86_64__)
    if (kernel.tiled && rows_of(call, group) > kernel.rows)
      return amx::int8_amx(call, tables.data(), x.of(group), group, tile, memory);
#endif
    kernel.multiply(call, tables.data(), x.of(group), group, tile, reinterpret_cast<int8_t*>(memory));
  });
}

#if defined(__aarch64__)
// Streams where the values of a codebook cannot be cut into slices.
void multiply_by_slices(const Matmul& call) {
  const auto tables = sliced_tables(call);
  if (!can_slice(tables)) return multiply_by_stream(call);
  const ArrangedSlices x(call);
  for_each_tile(call, 1, 0, [&](int64_t group, int64_t tile, uint8_t*) {
    dotprod::slices(call, tables.data(), x.of(group), group, tile);
  });
}

void multiply_by_bfmmla(const Matmul& call) {
  const BfmmlaRows x(call);
  for_each_tile(call, 1, 0,
                [&](int64_t group, int64_t tile, uint8_t*) { bf16::bfmmla(call, x.of(group), group, tile); });
}
#endif

}  // namespace

void multiply(const Matmul& call, int32_t algorithm) {
  switch (algorithm) {
    case BY_GEMM:
      return multiply_by_gemm(call);
    case BY_INT8:
      return multiply_by_int8(call);
#if defined(__x86_64__)
    case BY_AMX:
      return multiply_by_amx(call);
#elif defined(__aarch64__)
    case BY_SLICES:
      return multiply_by_slices(call);
    case BY_BFMMLA:
      return multiply_by_bfmmla(call);
#endif
    default:
      return multiply_by_stream(call);
  }
}

}  // namespace blockscale
