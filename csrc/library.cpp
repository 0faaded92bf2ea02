// The functions that Python calls. Each takes one struct of abi.h and returns 0, or 1 where memory
// ran out.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "abi.h"
#include "convert.h"
#include "int8_rows.h"
#include "kernels.h"
#include "lanes.h"
#include "threads.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace blockscale;

namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
std::unique_ptr<T, Free> aligned(int64_t count) {
  const size_t bytes = (size_t(count) * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes ? bytes : 64);
  if (!memory) throw std::bad_alloc();
  return std::unique_ptr<T, Free>(static_cast<T*>(memory));
}

int64_t rows_of(const Matmul& call) { return call.row_begin[call.groups]; }

// float32 x, padded with zeros to whole chunks and by seven rows.
struct WideRows {
  int64_t stride;
  std::unique_ptr<float, Free> data;

  explicit WideRows(const Matmul& call)
      : stride(lanes::chunks(call.k) * lanes::CHUNK),
        data(aligned<float>((rows_of(call) + 7) * stride)) {
    const int64_t rows = rows_of(call);
    parallel_for(rows + 7, call.threads, [&](int64_t row) {
      float* to = data.get() + row * stride;
      const int64_t k = row < rows ? call.k : 0;
      for (int64_t i = 0; i < k; ++i)
        to[i] = read_float(call.x, row * call.x_stride + i, call.x_dtype);
      for (int64_t i = k; i < stride; ++i) to[i] = 0.0f;
    });
  }
};

#if defined(__x86_64__)
// bfloat16 x in tiles of 16 rows by 32 columns, zero past the rows and past k; each group's rows
// begin a tile of their own.
struct TiledRows {
  std::vector<int64_t> first_tile;
  std::unique_ptr<uint16_t, Free> data;

  explicit TiledRows(const Matmul& call) {
    const int64_t chunks = lanes::chunks(call.k);
    int64_t tiles = 0;
    for (int64_t g = 0; g < call.groups; ++g) {
      first_tile.push_back(tiles);
      tiles += (call.row_begin[g + 1] - call.row_begin[g] + 15) / 16;
    }
    // A last block of up to 16 rows is read as if it had a second tile.
    data = aligned<uint16_t>((tiles + 1) * chunks * 512);
    parallel_for(call.groups, call.threads, [&](int64_t g) {
      const int64_t begin = call.row_begin[g], rows = call.row_begin[g + 1] - begin;
      for (int64_t r = 0; r < (rows + 15) / 16 * 16; ++r)
        for (int64_t c = 0; c < chunks; ++c) {
          uint16_t* to = data.get() + ((first_tile[size_t(g)] + r / 16) * chunks + c) * 512 + r % 16 * 32;
          for (int64_t i = 0; i < 32; ++i) {
            const int64_t k = c * 32 + i;
            const bool inside = r < rows && k < call.k;
            to[i] = inside ? static_cast<const uint16_t*>(call.x)[(begin + r) * call.x_stride + k] : 0;
          }
        }
    });
  }
};

// AMX: the CPU has it, and the kernel lets this process use it.
bool amx_usable() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & (1u << 22)) || !(d & (1u << 24))) return false;  // AMX-BF16, AMX-TILE
  const long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

// Calls work(group, tile) for every `step`-th tile of every group that has rows, on all threads.
template <class Work>
void for_each_tile(const Matmul& call, int64_t step, Work work) {
  const int64_t tiles = (lanes::tiles(call.n) + step - 1) / step;
  std::vector<int64_t> busy;  // experts without rows cost nothing
  for (int64_t g = 0; g < call.groups; ++g)
    if (call.row_begin[g] < call.row_begin[g + 1]) busy.push_back(g);
  // A few tiles to an item: enough items to share out, long enough reads for the prefetcher.
  const int64_t all = int64_t(busy.size()) * tiles;
  const int64_t grain = all / (int64_t(call.threads) * 16) + 1;
  parallel_for((all + grain - 1) / grain, call.threads, [&](int64_t item) {
    const int64_t last = (item + 1) * grain < all ? (item + 1) * grain : all;
    for (int64_t i = item * grain; i < last; ++i) work(busy[size_t(i / tiles)], i % tiles * step);
  });
}

auto* stream_kernel(int isa) {
#if defined(__x86_64__)
  if (isa >= AVX512) return &avx512::stream;
  if (isa == AVX2) return &avx2::stream;
#endif
  (void)isa;
  return &scalar::stream;
}

auto* decode_kernel(int isa) {
#if defined(__x86_64__)
  if (isa >= AVX512) return &avx512::decode;
  if (isa == AVX2) return &avx2::decode;
#endif
  (void)isa;
  return &scalar::decode;
}

#if defined(__x86_64__)
// Whether a scale of this format could make bfloat16 products subnormal or infinite.
bool scales_need_checking(const Format& format) {
  if (format.scale_bytes == 4) return true;
  for (int i = 0; i < 256; ++i) {
    const float scale = format.scale_table[i];
    if (scale > 0x1p100f || (scale > 0 && scale < 0x1p-100f)) return true;
  }
  return false;
}

void multiply_by_amx(const Matmul& call) {
  const TiledRows x(call);
  const int64_t chunks = lanes::chunks(call.k), slab_bytes = amx::slab_chunks(call.format) * 2 * 1024;
  int64_t most_rows = 0;
  for (int64_t g = 0; g < call.groups; ++g)
    most_rows = std::max(most_rows, call.row_begin[g + 1] - call.row_begin[g]);
  const int64_t sums = 2 * ((most_rows + 31) / 32) * 32 * 32;
  const bool check = scales_need_checking(call.format);
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> left;  // panels with unsafe scales
  for_each_tile(call, 2, [&](int64_t group, int64_t tile) {
    static thread_local std::unique_ptr<uint8_t, Free> memory;
    static thread_local int64_t held = 0;
    const int64_t wanted = 2 * slab_bytes + sums * int64_t(sizeof(float));
    if (held < wanted) {
      memory = aligned<uint8_t>(wanted);
      held = wanted;
    }
    const AmxScratch scratch{{memory.get(), memory.get() + slab_bytes},
                             reinterpret_cast<float*>(memory.get() + 2 * slab_bytes)};
    const auto* rows = reinterpret_cast<const uint8_t*>(x.data.get()) +
                       x.first_tile[size_t(group)] * chunks * 1024;
    if (!amx::multiply_panel(call, rows, group, tile, check, scratch)) {
      const std::lock_guard<std::mutex> lock(mutex);
      left.emplace_back(group, tile);
    }
  });
  if (left.empty()) return;
  const WideRows wide(call);
  parallel_for(int64_t(left.size()), call.threads, [&](int64_t i) {
    const auto [group, tile] = left[size_t(i)];
    for (int64_t t = tile; t < tile + 2 && t < lanes::tiles(call.n); ++t)
      avx512::stream(call, wide.data.get(), wide.stride, group, t);
  });
}
#endif

template <class Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

EXPORT int bs_abi_version() { return ABI_VERSION; }

// The best instruction set of this CPU.
EXPORT int bs_best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return SCALAR;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return AVX2;
  return amx_usable() ? AMX : AVX512;
#else
  return SCALAR;
#endif
}

// 1 where dot products of bytes are an instruction.
EXPORT int bs_has_vnni() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return 0;
#endif
}

EXPORT int bs_stream(const Matmul* call) {
  return guarded([&] {
    const WideRows x(*call);
    const auto work = stream_kernel(call->isa);
    for_each_tile(*call, 1, [&](int64_t group, int64_t tile) {
      work(*call, x.data.get(), x.stride, group, tile);
    });
  });
}

EXPORT int bs_int8(const Matmul* call) {
  return guarded([&] {
    auto work = &scalar::int8;
    int offset = 0;
#if defined(__x86_64__)
    if (call->isa >= AVX512 && bs_has_vnni()) {
      work = &vnni::int8;
      offset = 128;
    }
#endif
    const IntegerTable table(call->format, offset);
    const ArrangedRows x(*call, table.unit, offset);
    for_each_tile(*call, 1, [&](int64_t group, int64_t tile) {
      work(*call, table.bytes, x.view(), group, tile);
    });
  });
}

EXPORT int bs_decode_panel(const Panel* call) {
  return guarded([&] {
    const auto work = decode_kernel(call->isa);
    parallel_for(call->tiles, call->threads, [&](int64_t tile) { work(*call, tile); });
  });
}

EXPORT int bs_amx(const Matmul* call) {
#if defined(__x86_64__)
  return guarded([&] { multiply_by_amx(*call); });
#else
  (void)call;
  return 1;
#endif
}
