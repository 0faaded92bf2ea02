// Python objects that are structs and hold others: made, visited by the collector, and freed. Circles are common here:
// weights know their calls, and calls the weights.
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstring>

namespace {

// A copy of `told`, which holds nothing yet; `kHeld` are the members that hold others.
template <class Object, const auto &kHeld>
PyObject *make_object(PyTypeObject *type, const Object &told) {
  PyObject *made = PyType_GenericAlloc(type, 0);
  if (!made) return nullptr;
  for (const auto member : kHeld) Py_IncRef(told.*member);
  constexpr size_t kHead = sizeof(PyObject);  // the interpreter's
  std::memcpy(reinterpret_cast<char *>(made) + kHead, reinterpret_cast<const char *>(&told) + kHead,
              sizeof told - kHead);
  return made;
}

template <class Object, const auto &kHeld>
int visit_held(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(reinterpret_cast<PyObject *>(Py_TYPE(self)));
  for (const auto member : kHeld) Py_VISIT(reinterpret_cast<Object *>(self)->*member);
  return 0;
}

template <class Object, const auto &kHeld>
int clear_held(PyObject *self) {
  for (const auto member : kHeld) {
    PyObject *held = reinterpret_cast<Object *>(self)->*member;
    reinterpret_cast<Object *>(self)->*member = nullptr;
    Py_DecRef(held);
  }
  return 0;
}

template <class Object, const auto &kHeld>
void free_object(PyObject *self) {
  PyObject_GC_UnTrack(self);
  clear_held<Object, kHeld>(self);
  PyTypeObject *type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DecRef(reinterpret_cast<PyObject *>(type));
}

}  // namespace
