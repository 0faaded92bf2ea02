// `run`: the first Replay that agrees with a call in everything is launched, with the call's tensors put in.
#pragma once
#include <Python.h>

#include <cstring>

#include "replay/questions.h"

namespace {

bool add_map(const Replay *call, char *arguments, const char *data, int64_t stride) {
  const Owned map(PyObject_CallFunction(call->x_map, "KL", static_cast<unsigned long long>(
      reinterpret_cast<uintptr_t>(data)), static_cast<long long>(stride)));
  char *bytes;
  Py_ssize_t size;
  if (!map || PyBytes_AsStringAndSize(map.object, &bytes, &size)) return false;
  if (size > call->x_at) {
    PyErr_SetString(PyExc_ValueError, "a map of x that does not fit");
    return false;
  }
  std::memcpy(arguments, bytes, size);
  return true;
}

// Addresses of memory that launches of a stream share.
bool add_workspace(const Replay *call, char *arguments, PyObject *stream) {
  const Owned told(PyObject_CallFunctionObjArgs(call->workspace, stream, nullptr));
  char *bytes;
  Py_ssize_t size;
  if (!told || PyBytes_AsStringAndSize(told.object, &bytes, &size)) return false;
  if (size > PyBytes_Size(call->arguments) - call->workspace_at) {
    PyErr_SetString(PyExc_ValueError, "a workspace that does not fit");
    return false;
  }
  std::memcpy(arguments + call->workspace_at, bytes, size);
  return true;
}

// The driver's status. Without the GIL: a launch waits where the queue of launches is full.
int launch(const Replay *call, void *stream, char *arguments) {
  LaunchConfig config;
  std::memcpy(&config, PyBytes_AsString(call->config), sizeof config);
  config.stream = stream;
  if (config.attribute_count) config.attributes = PyBytes_AsString(call->attributes);
  void *parameters[] = {arguments};
  int status;
  Py_BEGIN_ALLOW_THREADS
  status = call->launch(&config, call->function, parameters, nullptr);
  Py_END_ALLOW_THREADS
  return status;
}

template <class Value>
void put(char *arguments, Py_ssize_t at, Value value) {
  static_assert(sizeof(Value) == 8, "as `new_replay` has checked");
  std::memcpy(arguments + at, &value, sizeof value);
}

// The result; null without an error where the call is not like this one.
PyObject *attempt(const Replay *call, const Operands &given) {
  View of_x, of_others[kOthers];
  int64_t stride;
  const bool mapped = call->x_map != Py_None;
  if (call->up != given.up || call->activation != given.activation) return nullptr;
  if (!look(given.x, &of_x) || !call->x.agree(of_x)) return nullptr;
  if (!row_stride(of_x, &stride) || !is_copyable(of_x, stride, mapped)) return nullptr;
  for (int i = 0; i < kOthers; ++i) {
    const Expected &expected = call->others[i];
    if (expected.present != (given.others[i] != Py_None)) return nullptr;
    View *seen = of_others + i;
    if (expected.present && (!look(given.others[i], seen) || !expected.facts.agree(*seen) || !is_contiguous(*seen)))
      return nullptr;
  }
  // From here on Python may run, and only the tensors' addresses are used.
  if (needs_gradient(given) != Answer::kNo || any_of(given, is_negated) != Answer::kNo) return nullptr;
  if (still_hold(call->questions) != Answer::kYes || weights_are_unchanged(call) != Answer::kYes) return nullptr;
  if (!weights_are_in_place(call)) return nullptr;

  alignas(64) char arguments[kMostArgumentBytes];
  std::memcpy(arguments, PyBytes_AsString(call->arguments), PyBytes_Size(call->arguments));
  put(arguments, call->x_at, of_x.data);
  put(arguments, call->x_stride_at, stride);
  for (int i = 0; i < kOthers; ++i)
    if (call->others[i].present) put(arguments, call->others[i].at, of_others[i].data);
  if (mapped && !add_map(call, arguments, of_x.data, stride)) return nullptr;
  const Owned handle(PyObject_Call(call->stream, call->stream_arguments, nullptr));
  if (!handle) return nullptr;
  void *stream = PyLong_AsVoidPtr(handle.object);
  if (!stream && PyErr_Occurred()) return nullptr;
  if (call->workspace != Py_None && !add_workspace(call, arguments, handle.object)) return nullptr;

  PyObject *out = PyObject_Call(call->empty, call->empty_arguments, nullptr);
  if (!out) return nullptr;
  View of_out;
  if (look(out, &of_out)) {
    put(arguments, call->out_at, of_out.data);
    if (!launch(call, stream, arguments)) return out;
  }
  Py_DecRef(out);  // nothing was launched: Python does it again, and says what is wrong
  return nullptr;
}

bool are_plain(const Operands &given) {
  for (int i = 0; i < kOthers; ++i)
    if (given.others[i] != Py_None && !is_plain(given.others[i])) return false;
  return is_plain(given.x);
}

// The first of `calls` that agrees, launched: its result; null where none does, and without an error unless they are
// no Replays.
PyObject *run_any(PyObject *calls, const Operands &given) {
  if (!are_plain(given)) return nullptr;
  // Other threads may change the list meanwhile.
  for (Py_ssize_t i = 0; i < PyList_Size(calls); ++i) {
    PyObject *call = PyList_GetItem(calls, i);
    if (Py_TYPE(call) != replay_type) {
      PyErr_SetString(PyExc_TypeError, "a list of something else than Replays");
      return nullptr;
    }
    Py_IncRef(call);
    PyObject *out = attempt(reinterpret_cast<Replay *>(call), given);
    Py_DecRef(call);
    if (out || PyErr_Occurred()) return out;
  }
  return nullptr;
}

// run(calls, x, bias, bias of up, group sizes, up, activation): the result, or None.
PyObject *run(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 4 + kOthers || !PyList_Check(arguments[0]) || !view_of) {
    PyErr_SetString(PyExc_TypeError,
                    "run(list of Replays, x, bias, up_bias, group_sizes, up, activation), after use(...)");
    return nullptr;
  }
  const Operands given = {arguments[1], arguments + 2, arguments[2 + kOthers], arguments[3 + kOthers]};
  PyObject *out = run_any(arguments[0], given);
  if (out || PyErr_Occurred()) return out;
  Py_IncRef(Py_None);
  return Py_None;
}

}  // namespace
