// Tensors as DLPack describes them, and what of torch this extension was told once by `use`.
#pragma once
#include <Python.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kMostDimensions = 8;
constexpr int64_t kCopied = 16;  // bytes of x that the kernel copies at a time

// DLPack 1, as torch.Tensor.__dlpack_c_exchange_api__ offers it.

struct Kind {
  int32_t device_type, device_index, dimensions;
  uint8_t code, bits;
  uint16_t lanes;
};

struct View {
  char *data;
  Kind kind;
  int64_t *shape, *strides;  // the tensor's own: to be read before anything else runs; strides may be null
  uint64_t byte_offset;
};

struct Exchange {
  uint32_t major, minor;
  void *older;
  void *allocate, *own, *adopt;
  int (*view)(void *tensor, View *view);
  void *stream;
};

// What `use` was told: the same for every call.

int (*view_of)(void *tensor, View *view) = nullptr;
PyObject *tensor_type = nullptr, *parameter_type = nullptr, *is_grad_enabled = nullptr;
PyObject *is_neg = nullptr;  // torch.Tensor's, not yet bound to one: found once

// A tensor of some kind and shape.
struct Facts {
  Kind kind;
  int64_t shape[kMostDimensions];

  bool agree(const View &seen) const {
    return !std::memcmp(&kind, &seen.kind, sizeof kind) &&
           !std::memcmp(shape, seen.shape, sizeof(int64_t) * kind.dimensions);
  }
};

// A tensor that cannot be described is left to Python, whose error names it.
bool look(PyObject *tensor, View *seen) {
  if (view_of(tensor, seen)) {
    PyErr_Clear();
    return false;
  }
  if (!seen->data || seen->kind.dimensions > kMostDimensions) return false;
  seen->data += seen->byte_offset;
  return true;
}

bool is_plain(PyObject *tensor) {
  PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(tensor));
  return type == tensor_type || type == parameter_type;
}

// Without strides a tensor is contiguous: DLPack's way to say so.
bool is_contiguous(const View &seen) {
  if (!seen.strides) return true;
  int64_t stride = 1;
  for (int d = seen.kind.dimensions - 1; d >= 0; --d) {
    if (seen.shape[d] != 1 && seen.strides[d] != stride) return false;
    stride *= seen.shape[d];
  }
  return true;
}

// How far apart the rows of x are, taken as a matrix; false where it would have to be copied. A matrix is
// taken as it is; of other shapes, a stride along which there is one index says nothing: as in
// Tensor.reshape.
bool row_stride(const View &seen, int64_t *stride) {
  const int last = seen.kind.dimensions - 1;
  if (last < 0) return false;
  if (!seen.strides) {
    *stride = seen.shape[last];
    return true;
  }
  if (seen.strides[last] != 1) return false;
  if (last == 1) {
    *stride = seen.strides[0];
    return true;
  }
  int64_t rows = 1;
  *stride = seen.shape[last];
  for (int d = last - 1; d >= 0; --d) {
    if (seen.shape[d] == 1) continue;
    if (rows == 1) {
      *stride = seen.strides[d];
    } else if (seen.strides[d] != rows * *stride) {
      return false;
    }
    rows *= seen.shape[d];
  }
  return true;
}

// Whether 16 bytes can be copied at a time, and rows are apart where the hardware is told of all of them.
bool is_copyable(const View &seen, int64_t stride, bool mapped) {
  const int64_t bytes = seen.kind.bits / 8;
  if (reinterpret_cast<uintptr_t>(seen.data) % kCopied || stride * bytes % kCopied) return false;
  return !mapped || stride >= seen.shape[seen.kind.dimensions - 1];
}

}  // namespace
