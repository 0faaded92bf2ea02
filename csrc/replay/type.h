// The Python type Replay: made of what a plan has found out, and freed.
#pragma once
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "replay/held.h"
#include "replay/questions.h"
#include "replay/record.h"

namespace {

bool describe(PyObject *tensor, Facts *facts) {
  View seen;
  if (!view_of || !is_plain(tensor) || !look(tensor, &seen)) {
    PyErr_SetString(PyExc_TypeError, "not a plain tensor of up to 8 dimensions, or `use` was not called");
    return false;
  }
  facts->kind = seen.kind;
  std::memcpy(facts->shape, seen.shape, sizeof(int64_t) * seen.kind.dimensions);
  return true;
}

// Where each tensor of the weights was when the call was planned.
bool read_addresses(PyObject *addresses, Replay *call) {
  const Py_ssize_t count = PyTuple_Size(call->weights);
  if (count > kMostWeightTensors || PyTuple_Size(addresses) != count) {
    PyErr_SetString(PyExc_ValueError, "weights: up to 8 tensors, with an address each");
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!is_plain(PyTuple_GetItem(call->weights, i))) {
      PyErr_SetString(PyExc_TypeError, "weights that are no plain tensors");
      return false;
    }
    call->addresses[i] = static_cast<const char *>(PyLong_AsVoidPtr(PyTuple_GetItem(addresses, i)));
    if (!call->addresses[i]) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "weights without memory");
      return false;
    }
  }
  return true;
}

bool is_sound(const Replay *call) {
  const Py_ssize_t size = PyBytes_Size(call->arguments);
  for (const Py_ssize_t at : {call->x_at, call->x_stride_at, call->out_at, call->others[kBias].at,
                              call->others[kUpBias].at, call->others[kGroupSizes].at}) {
    if (at < 0 || at + 8 > size || size > kMostArgumentBytes) return false;
  }
  if (call->workspace_at < 0 || call->workspace_at > size) return false;
  return PyBytes_Size(call->config) == sizeof(LaunchConfig) && call->launch && are_questions(call->questions);
}

PyObject *new_replay(PyTypeObject *type, PyObject *positional, PyObject *named) {
  static const char *names[] = {
      "key", "kept", "x", "bias", "up_bias", "group_sizes", "up", "activation", "arguments", "x_at",
      "x_stride_at", "out_at", "bias_at", "up_bias_at", "group_sizes_at", "x_map", "workspace", "workspace_at",
      "launch", "function",
      "config", "attributes", "weights", "addresses", "counted", "version", "questions", "stream", "stream_arguments",
      "empty", "empty_arguments", nullptr};
  Replay told = {};  // nothing is held yet
  PyObject *x, *others[kOthers], *addresses;
  unsigned long long entry, function;
  if (!PyArg_ParseTupleAndKeywords(
          positional, named, "OOOOOOOOSnnnnnnOOnKKSSO!O!O!LO!OO!OO!", const_cast<char **>(names), &told.key, &told.kept,
          &x, &others[kBias], &others[kUpBias], &others[kGroupSizes], &told.up, &told.activation,
          &told.arguments, &told.x_at, &told.x_stride_at, &told.out_at, &told.others[kBias].at,
          &told.others[kUpBias].at, &told.others[kGroupSizes].at, &told.x_map, &told.workspace, &told.workspace_at,
          &entry, &function, &told.config,
          &told.attributes, &PyTuple_Type, &told.weights, &PyTuple_Type, &addresses, &PyTuple_Type, &told.counted,
          &told.version, &PyTuple_Type, &told.questions, &told.stream, &PyTuple_Type, &told.stream_arguments,
          &told.empty, &PyTuple_Type, &told.empty_arguments)) {
    return nullptr;
  }
  told.launch = reinterpret_cast<Launch>(static_cast<uintptr_t>(entry));
  told.function = reinterpret_cast<void *>(static_cast<uintptr_t>(function));
  if (!describe(x, &told.x) || !read_addresses(addresses, &told)) return nullptr;
  for (int i = 0; i < kOthers; ++i) {
    told.others[i].present = others[i] != Py_None;
    if (told.others[i].present && !describe(others[i], &told.others[i].facts)) return nullptr;
  }
  if (!is_sound(&told)) {
    PyErr_SetString(PyExc_ValueError, "arguments, places or questions that make no sense");
    return nullptr;
  }
  return make_object<Replay, kHeld>(type, told);
}

PyMemberDef members[] = {
    {"key", T_OBJECT_EX, offsetof(Replay, key), READONLY, "by which Python finds it"},
    {"kept", T_OBJECT_EX, offsetof(Replay, kept), READONLY, "what lives as long"},
    {"version", T_LONGLONG, offsetof(Replay, version), READONLY, "the sum of the weights' versions"},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char *>("What a settled plan has found out, for `run`.")},
    {Py_tp_new, reinterpret_cast<void *>(new_replay)},
    {Py_tp_dealloc, reinterpret_cast<void *>((free_object<Replay, kHeld>))},
    {Py_tp_traverse, reinterpret_cast<void *>((visit_held<Replay, kHeld>))},
    {Py_tp_clear, reinterpret_cast<void *>((clear_held<Replay, kHeld>))},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"blockscale.runtime._replay.Replay", sizeof(Replay), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace
