// Tokens' way through all layers of a decoder in one call: what Python would do between products takes longer than many
// of them.
#include <algorithm>
#include <array>
#include <initializer_list>

#include "decoder/steps.h"
#include "products/int8_table.h"
#include "products/multiply.h"
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
  decltype(&decoder_scalar::attend_together) attend_together;
};

Steps steps_of(int isa) {
#define STEPS_OF(isa) {isa::rms_norm, isa::rotate, isa::keep, isa::attend, isa::attend_together}
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

// What tokens' products read: float32, or more tokens' in the dtype of x.
class Inputs {
 public:
  Inputs(int64_t rows, int64_t width, int32_t dtype)
      : width(width), dtype(dtype), data_(make_array<uint8_t>(rows * width * (dtype == FLOAT32 ? 4 : 2))) {}

  uint8_t* get() const { return data_.get(); }

  const int64_t width;
  const int32_t dtype;

 private:
  Array<uint8_t> data_;
};

// The way of some tokens through the layers.
class Tokens {
 public:
  explicit Tokens(const Decode& call)
      : call_(call),
        steps_(steps_of(call.isa)),
        row_begin_{0, call.tokens},
        x_(make_array<float>(call.tokens * call.hidden)),
        added_(make_array<float>(call.tokens * call.hidden)),
        q_(make_array<float>(call.tokens * heads_width())),
        k_(make_array<float>(call.tokens * kv_width())),
        v_(make_array<float>(call.tokens * kv_width())),
        normed_(call.tokens, call.hidden, input_dtype()),
        attended_(call.tokens, heads_width(), input_dtype()),
        gated_(call.tokens, call.intermediate, input_dtype()) {
    for_rows(0, [&](int64_t row, uint8_t*) {
      for (int64_t i = row * call.hidden; i < (row + 1) * call.hidden; ++i)
        x_.get()[i] = read_float(call.x, i, call.x_dtype);
    });
  }

  void pass() {
    for (int64_t i = 0; i < call_.count; ++i) {
      attention(call_.layers[i], i > 0);
      mlp(call_.layers[i]);
    }
    norm(call_.norm, call_.count > 0, call_.out, call_.x_dtype);
  }

 private:
  int64_t heads_width() const { return call_.heads * call_.head_dim; }
  int64_t kv_width() const { return call_.kv_heads * call_.head_dim; }
  bool is_one() const { return call_.tokens == 1; }
  int32_t input_dtype() const { return is_one() || call_.int8 ? int32_t(FLOAT32) : call_.x_dtype; }

  void attention(DecoderLayer& layer, bool add) {
    norm(layer.attention_norm, add, normed_.get(), normed_.dtype);
    multiply_all({&place(layer.q, normed_, q_), &place(layer.k, normed_, k_), &place(layer.v, normed_, v_)});
    for_rows(0, [&](int64_t row, uint8_t*) { rotate(layer, row); });
    if (is_one())
      parallel_for(call_.heads, call_.threads, (call_.position + 1) * int64_t(sizeof(float)),
                   [&](int64_t head, uint8_t* memory) {
                     const int64_t at = head * call_.head_dim;
                     steps_.attend(call_, layer, head, q_.get() + at, reinterpret_cast<float*>(attended_.get()) + at,
                                   reinterpret_cast<float*>(memory));
                   });
    else
      attend_together(layer);
    multiply_all({&place(layer.o, attended_, added_)});
  }

  void mlp(DecoderLayer& layer) {
    norm(layer.mlp_norm, true, normed_.get(), normed_.dtype);
    multiply_all({&place(layer.gate_up, normed_, gated_.get(), gated_.dtype)});
    multiply_all({&place(layer.down, gated_, added_)});
  }

  // Of what is left of x and, where `add`, of what a product has added.
  void norm(const RmsNorm& norm, bool add, void* out, int32_t dtype) {
    for_rows(call_.hidden * int64_t(sizeof(float)), [&](int64_t row, uint8_t* memory) {
      const int64_t width = call_.hidden, at = row * width;
      float *x = x_.get() + at, *normed = reinterpret_cast<float*>(memory);
      if (add)
        for (int64_t i = 0; i < width; ++i) x[i] += added_.get()[at + i];
      steps_.rms_norm(norm, x, width, normed);
      steps_.keep(normed, width, dtype, out, at);
    });
  }

  // Turns the heads of a token, and keeps its keys and values.
  void rotate(const DecoderLayer& layer, int64_t row) {
    const int64_t size = call_.head_dim, at = (call_.position + row) * size;
    const float *cos = call_.rotation + row * 2 * size, *sin = cos + size;
    float *q = q_.get() + row * heads_width(), *k = k_.get() + row * kv_width(), *v = v_.get() + row * kv_width();
    const auto turn = [&](const RmsNorm& norm, float* head) {
      if (norm.weight) steps_.rms_norm(norm, head, size, head);
      steps_.rotate(head, cos, sin, size);
    };
    for (int64_t h = 0; h < call_.heads; ++h) turn(layer.q_norm, q + h * size);
    for (int64_t h = 0; h < call_.kv_heads; ++h) {
      turn(layer.k_norm, k + h * size);
      steps_.keep(k + h * size, size, call_.cache_dtype, layer.keys, h * layer.head_stride + at);
      steps_.keep(v + h * size, size, call_.cache_dtype, layer.values, h * layer.head_stride + at);
    }
  }

  // The last tokens, which attend to most, first: so that no thread has one of them left at the end.
  void attend_together(const DecoderLayer& layer) {
    const int64_t blocks = (call_.tokens + ATTENDING - 1) / ATTENDING;
    const int64_t memory_bytes = attention_memory(call_, call_.position + call_.tokens) * int64_t(sizeof(float));
    parallel_for(call_.heads * blocks, call_.threads, memory_bytes, [&](int64_t item, uint8_t* memory) {
      const int64_t head = item % call_.heads, first = (blocks - 1 - item / call_.heads) * ATTENDING;
      steps_.attend_together(call_, layer, head, first, q_.get(), attended_.get(), attended_.dtype,
                             reinterpret_cast<float*>(memory));
    });
  }

  template <class Work>
  void for_rows(int64_t bytes, Work work) {
    parallel_for(call_.tokens, call_.threads, bytes, work);
  }

  // Of the same x.
  void multiply_all(std::initializer_list<const DecoderProduct*> products) const {
    if (is_one()) {
      std::array<const Matmul*, 3> calls{};
      std::transform(products.begin(), products.end(), calls.begin(), [](auto* each) { return &each->call; });
      return products.size() == 1 ? multiply_row({calls[0]}) : multiply_row({calls[0], calls[1], calls[2]});
    }
    for (const DecoderProduct* each : products) multiply(each->call, each->algorithm);
  }

  void multiply_row(std::initializer_list<const Matmul*> calls) const {
    if (!share_x(calls)) {
      for (const Matmul* call : calls) multiply_row({call});
      return;
    }
    if (call_.int8) multiply_int8(calls);
    else multiply_float32(calls);
  }

  const DecoderProduct& place(DecoderProduct& product, const Inputs& x, const Array<float>& out) const {
    return place(product, x, out.get(), FLOAT32);
  }

  const DecoderProduct& place(DecoderProduct& product, const Inputs& x, void* out, int32_t out_dtype) const {
    Matmul& call = product.call;
    call.row_begin = row_begin_;
    call.x = x.get();
    call.x_stride = x.width;
    call.x_dtype = x.dtype;
    call.out = out;
    call.out_stride = call.n;
    call.out_dtype = out_dtype;
    call.isa = call_.isa;
    call.threads = call_.threads;
    return product;
  }

  const Decode& call_;
  const Steps steps_;
  const int64_t row_begin_[2];
  Array<float> x_, added_, q_, k_, v_;
  Inputs normed_, attended_, gated_;
};

}  // namespace

EXPORT int64_t bs_decode(const Decode* call) {
  return bytes_refused([&] { Tokens(*call).pass(); });
}
