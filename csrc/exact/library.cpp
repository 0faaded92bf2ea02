// The exported functions whose every bit is defined. Each takes one struct of abi.h and returns 0, or how many
// bytes of memory could not be had.
#include "cpu_tiles.h"
#include "exact/exact.h"
#include "runtime/memory.h"
#include "runtime/threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace blockscale;

namespace {

constexpr int64_t LEAST_WORK = 1 << 14;  // numbers; less is not worth waking a thread for

#if defined(__x86_64__)
#define PICK(function, isa)                                                                        \
  ((isa) >= AVX512 ? &exact_avx512::function                                                       \
   : (isa) == AVX2 ? &exact_avx2::function                                                         \
                   : &exact_scalar::function)
#elif defined(__aarch64__)
#define PICK(function, isa) ((void)(isa), &exact_neon::function)
#else
#define PICK(function, isa) ((void)(isa), &exact_scalar::function)
#endif

// Shares out `units` of `size` numbers each: work(call, begin, end).
template <class Call>
void share_out(const Call& call, void (*work)(const Call&, int64_t, int64_t), int64_t units,
               int64_t size) {
  const int64_t balanced = units / (int64_t(call.threads) * 8), least = LEAST_WORK / size;
  const int64_t grain = (balanced > least ? balanced : least) + 1;
  parallel_for((units + grain - 1) / grain, call.threads, [&](int64_t item) {
    const int64_t end = (item + 1) * grain;
    work(call, item * grain, end < units ? end : units);
  });
}

}  // namespace

void blockscale::arrange_int8(const Int8Arrangement& work) {
  const int64_t in_row = (work.call.k + INT8_COLUMNS - 1) / INT8_COLUMNS;
  const int most = work.row_tile_count ? work.row_tiles[0].rows : 1;
  share_out(work, PICK(arrange_int8, work.call.isa), work.row_tile_count * in_row, most * INT8_COLUMNS);
}

EXPORT int64_t bs_quantize(const Quantize* call) {
  const int64_t length = row_part_length(call->format.block);
  const int64_t units = call->groups * call->n * ((call->k + length - 1) / length);
  return bytes_refused([&] { share_out(*call, PICK(quantize, call->isa), units, length); });
}

EXPORT int64_t bs_dequantize(const Dequantize* call) {
  const bool tiled = call->code_layout == CPU_TILES;
  const int64_t rows = tiled ? cpu_tiles::tiles(call->n) : call->n;
  const int64_t units = call->groups * rows, size = call->k * (tiled ? cpu_tiles::ROWS : 1);
  return bytes_refused([&] { share_out(*call, PICK(dequantize, call->isa), units, size); });
}

EXPORT int64_t bs_repack(const Repack* call) {
  const int64_t units = call->groups * cpu_tiles::tiles(call->n), size = call->k * cpu_tiles::ROWS;
  return bytes_refused([&] { share_out(*call, PICK(repack, call->isa), units, size); });
}

EXPORT int64_t bs_amax(const Amax* call) {
  return bytes_refused([&] { share_out(*call, PICK(amax, call->isa), call->rows, call->k); });
}
