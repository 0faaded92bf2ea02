// A whole token of a decoder in one call: what Python would do between products takes longer than many of them.
#include <algorithm>
#include <initializer_list>

#include "decoder/steps.h"
#include "products/int8_table.h"
#include "products/pick.h"
#include "products/slice_rows.h"
#include "products/x_rows.h"
#include "runtime/memory.h"
#include "runtime/threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace blockscale;

namespace {

struct Steps {
  decltype(&decoder_scalar::rms_norm) rms_norm;
  decltype(&decoder_scalar::rotate) rotate;
  decltype(&decoder_scalar::keep) keep;
  decltype(&decoder_scalar::attend) attend;
};

Steps steps_of(int isa) {
#define STEPS_OF(isa) {isa::rms_norm, isa::rotate, isa::keep, isa::attend}
#if defined(__x86_64__)
  if (isa >= AVX512) return STEPS_OF(decoder_avx512);
  if (isa == AVX2) return STEPS_OF(decoder_avx2);
#endif
  (void)isa;
  return STEPS_OF(decoder_scalar);
#undef STEPS_OF
}

// Products of the same row of x, as one job: work(call, x, tile) for every tile of every product.
template <class Work>
void for_all_tiles(std::initializer_list<const Matmul*> calls, int threads, Work work) {
  int64_t ends[3] = {}, all = 0;
  for (size_t i = 0; i < calls.size(); ++i) ends[i] = all += cpu_tiles::tiles(calls.begin()[i]->n);
  parallel_for(all, threads, [&](int64_t item) {
    size_t i = 0;
    while (item >= ends[i]) ++i;
    work(i, item - (i ? ends[i - 1] : 0));
  });
}

// Whether products of the same row can read it in one order, which follows the bits of their codes and their runs.
bool share_x(std::initializer_list<const Matmul*> calls) {
  const Format& first = (*calls.begin())->format;
  return std::all_of(calls.begin(), calls.end(), [&](const Matmul* call) {
    return call->format.bits == first.bits && int8_run(call->format.block) == int8_run(first.block);
  });
}

void multiply_int8(std::initializer_list<const Matmul*> calls) {
  const Matmul& first = **calls.begin();
  const Int8Kernel kernel = int8_kernel(first.isa);
  const ArrangedInt8 x(first, kernel.rows, false, kernel.offset);
  std::array<std::array<IntegerTable, 2>, 3> tables;
  for (size_t i = 0; i < calls.size(); ++i) tables[i] = integer_tables(*calls.begin()[i]);
  for_all_tiles(calls, first.threads, [&](size_t i, int64_t tile) {
    kernel.multiply(*calls.begin()[i], tables[i].data(), x.of(0), 0, tile, nullptr);  // one row needs no stage
  });
}

#if defined(__aarch64__)
// Whether all products can be made of slices, and were.
bool multiply_slices(std::initializer_list<const Matmul*> calls) {
  std::array<std::array<SlicedTable, 2>, 3> tables;
  for (size_t i = 0; i < calls.size(); ++i) {
    tables[i] = sliced_tables(*calls.begin()[i]);
    if (!can_slice(tables[i])) return false;
  }
  const Matmul& first = **calls.begin();
  const ArrangedSlices x(first);
  for_all_tiles(calls, first.threads, [&](size_t i, int64_t tile) {
    dotprod::slices(*calls.begin()[i], tables[i].data(), x.of(0), 0, tile);
  });
  return true;
}
#endif

void multiply_float32(std::initializer_list<const Matmul*> calls) {
#if defined(__aarch64__)
  if (multiply_slices(calls)) return;
#endif
  const Matmul& first = **calls.begin();
  const ArrangedRows x(first);
  const auto work = float32_kernels(first.isa).stream;
  for_all_tiles(calls, first.threads,
                [&](size_t i, int64_t tile) { work(*calls.begin()[i], x.of(0), 0, tile); });
}

// One token's way through the layers.
class Token {
 public:
  explicit Token(const Decode& call)
      : call_(call),
        steps_(steps_of(call.isa)),
        x_(make_array<float>(call.hidden)),
        normed_(make_array<float>(call.hidden)),
        added_(make_array<float>(call.hidden)),
        q_(make_array<float>(call.heads * call.head_dim)),
        k_(make_array<float>(call.kv_heads * call.head_dim)),
        v_(make_array<float>(call.kv_heads * call.head_dim)),
        attended_(make_array<float>(call.heads * call.head_dim)),
        gated_(make_array<float>(call.intermediate)) {
    for (int64_t i = 0; i < call.hidden; ++i) x_.get()[i] = read_float(call.x, i, call.x_dtype);
  }

  void pass() {
    for (int64_t i = 0; i < call_.count; ++i) {
      attention(call_.layers[i]);
      mlp(call_.layers[i]);
    }
    norm(call_.norm);
    steps_.keep(normed_.get(), call_.hidden, call_.x_dtype, call_.out, 0);
  }

 private:
  void attention(DecoderLayer& layer) {
    norm(layer.attention_norm);
    multiply({&place(layer.q, normed_, q_), &place(layer.k, normed_, k_), &place(layer.v, normed_, v_)});
    const int64_t size = call_.head_dim, at = call_.position * size;
    for (int64_t h = 0; h < call_.heads; ++h) steps_.rotate(q_.get() + h * size, call_.cos, call_.sin, size);
    for (int64_t h = 0; h < call_.kv_heads; ++h) {
      steps_.rotate(k_.get() + h * size, call_.cos, call_.sin, size);
      steps_.keep(k_.get() + h * size, size, call_.cache_dtype, layer.keys, h * layer.head_stride + at);
      steps_.keep(v_.get() + h * size, size, call_.cache_dtype, layer.values, h * layer.head_stride + at);
    }
    parallel_for(call_.heads, call_.threads, (call_.position + 1) * int64_t(sizeof(float)),
                 [&](int64_t h, uint8_t* memory) {
                   steps_.attend(call_, layer, h, q_.get() + h * size, attended_.get() + h * size,
                                 reinterpret_cast<float*>(memory));
                 });
    multiply({&place(layer.o, attended_, added_)});
    add();
  }

  void mlp(DecoderLayer& layer) {
    norm(layer.mlp_norm);
    multiply({&place(layer.gate_up, normed_, gated_)});
    multiply({&place(layer.down, gated_, added_)});
    add();
  }

  void norm(const RmsNorm& norm) { steps_.rms_norm(norm, x_.get(), call_.hidden, normed_.get()); }

  void add() {
    for (int64_t i = 0; i < call_.hidden; ++i) x_.get()[i] += added_.get()[i];
  }

  void multiply(std::initializer_list<const Matmul*> calls) const {
    if (!share_x(calls)) {
      for (const Matmul* call : calls) multiply({call});
      return;
    }
    if (call_.int8) multiply_int8(calls);
    else multiply_float32(calls);
  }

  const Matmul& place(Matmul& product, const Array<float>& x, const Array<float>& out) const {
    product.row_begin = ONE_ROW;
    product.x = x.get();
    product.x_stride = product.k;
    product.x_dtype = product.out_dtype = FLOAT32;
    product.out = out.get();
    product.out_stride = product.n;
    product.isa = call_.isa;
    product.threads = call_.threads;
    return product;
  }

  static constexpr int64_t ONE_ROW[2] = {0, 1};

  const Decode& call_;
  const Steps steps_;
  Array<float> x_, normed_, added_, q_, k_, v_, attended_, gated_;
};

}  // namespace

EXPORT int64_t bs_decode(const Decode* call) {
  return bytes_refused([&] { Token(*call).pass(); });
}
