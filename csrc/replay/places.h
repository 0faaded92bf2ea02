// Where weights are in memory, and how they lie there: all that a launch has of them.
#pragma once
#include <Python.h>

#include <cstring>

#include "replay/record.h"

namespace {

bool is_list(PyObject *object) { return PyList_Check(object) || PyTuple_Check(object); }

Py_ssize_t length(PyObject *list) { return PyList_Check(list) ? PyList_Size(list) : PyTuple_Size(list); }

PyObject *item(PyObject *list, Py_ssize_t i) {
  return PyList_Check(list) ? PyList_GetItem(list, i) : PyTuple_GetItem(list, i);
}

// Bytes that say it of up to 8 plain tensors; null without an error of others.
PyObject *places_of(PyObject *tensors) {
  constexpr int kMostWords = sizeof(Kind) / 8 + 2 + 2 * kMostDimensions;  // of one
  static_assert(sizeof(Kind) % 8 == 0, "in whole words");
  int64_t told[kMostWeightTensors * kMostWords];
  int64_t *end = told;
  if (!is_list(tensors) || length(tensors) > kMostWeightTensors) return nullptr;
  const auto add = [&end](const void *from, size_t bytes) {
    std::memcpy(end, from, bytes);
    end += bytes / sizeof(int64_t);
  };
  for (Py_ssize_t i = 0; i < length(tensors); ++i) {
    View seen;
    PyObject *tensor = item(tensors, i);
    if (!is_plain(tensor) || !look(tensor, &seen)) return nullptr;
    const size_t dimensions = sizeof(int64_t) * seen.kind.dimensions;
    const int64_t has_strides = seen.strides != nullptr;
    add(&seen.data, sizeof seen.data);
    add(&seen.kind, sizeof seen.kind);
    add(&has_strides, sizeof has_strides);
    add(seen.shape, dimensions);
    if (has_strides) add(seen.strides, dimensions);
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<char *>(told), (end - told) * sizeof(int64_t));
}

// places(tensors): bytes, or None.
PyObject *places(PyObject *, PyObject *tensors) {
  if (!view_of) {
    PyErr_SetString(PyExc_TypeError, "places(tensors), after use(...)");
    return nullptr;
  }
  PyObject *told = places_of(tensors);
  if (told || PyErr_Occurred()) return told;
  Py_IncRef(Py_None);
  return Py_None;
}

}  // namespace
