// An OpCall: an op as programs call it. Where nobody watches the call it goes to the op's kernel, or is replayed:
// torch's dispatcher would copy every argument to C++ and back.
#pragma once
#include <Python.h>

#include <cstring>

#include "replay/held.h"
#include "replay/places.h"
#include "replay/run.h"

namespace {

// As in the schema of products, blockscale/ops/arguments.py.
enum ProductArgument { kX, kW, kText, kN, kK, kFirstOther, kXTensorScale = kFirstOther + kOthers, kXRest, kXCodebook };
constexpr const char *kProductArguments[] = {"x",        "w",           "text",           "n",      "k",         "bias",
                                             "up_bias", "group_sizes", "x_tensor_scale", "x_rest", "x_codebook"};
constexpr Py_ssize_t kProductArgumentCount = sizeof kProductArguments / sizeof *kProductArguments;
static_assert(kXCodebook + 1 == kProductArgumentCount);

struct OpCall {
  PyObject_HEAD
  PyObject *known;       // dict: (text, n, k, places of the weights) -> (plans, list of Replays)
  PyObject *kernel;      // called where nobody watches
  PyObject *dispatched;  // torch's own call of the op
  PyObject *questions;   // (callable, arguments, answer), each: whether nobody does
};

constexpr PyObject *OpCall::*kHeldByOp[] = {&OpCall::known, &OpCall::kernel, &OpCall::dispatched, &OpCall::questions};

// The Replays of calls with such weights and words; null where there are none.
PyObject *replays_of(const OpCall *op, PyObject *arguments) {
  PyObject *text = PyTuple_GetItem(arguments, kText), *n = PyTuple_GetItem(arguments, kN);
  PyObject *k = PyTuple_GetItem(arguments, kK);
  if (!PyUnicode_CheckExact(text) || !PyLong_CheckExact(n) || !PyLong_CheckExact(k)) return nullptr;
  const Owned places(places_of(PyTuple_GetItem(arguments, kW)));
  if (!places) return nullptr;
  const Owned key(PyTuple_Pack(4, text, n, k, places.object));
  PyObject *found = key ? PyDict_GetItemWithError(op->known, key.object) : nullptr;
  if (!found || !PyTuple_Check(found) || PyTuple_Size(found) != 2) return nullptr;
  PyObject *replays = PyTuple_GetItem(found, 1);
  return PyList_Check(replays) ? replays : nullptr;
}

// The result; null where Python takes the call.
PyObject *replay_product(const OpCall *op, PyObject *arguments) {
  if (PyTuple_Size(arguments) != kProductArgumentCount) return nullptr;
  if (PyTuple_GetItem(arguments, kXTensorScale) != Py_None) return nullptr;
  PyObject *others[kOthers];
  for (int i = 0; i < kOthers; ++i) others[i] = PyTuple_GetItem(arguments, kFirstOther + i);
  const Operands given = {PyTuple_GetItem(arguments, kX), others, Py_None, Py_None};
  PyObject *replays = are_plain(given) ? replays_of(op, arguments) : nullptr;
  if (!replays || !PyList_Size(replays)) return nullptr;
  Py_IncRef(replays);  // Python may run, and forget them
  PyObject *out = run_any(replays, given);
  Py_DecRef(replays);
  return out;
}

// Whether nobody has to see one argument as torch does: it is a plain tensor with memory, or no tensor at all.
Answer is_unremarkable(PyObject *argument, bool gradients) {
  constexpr uint8_t kFloat = 2;  // DLPack's
  if (argument == Py_None || PyUnicode_CheckExact(argument) || PyLong_CheckExact(argument)) return Answer::kYes;
  if (PyFloat_CheckExact(argument)) return Answer::kYes;
  if (is_list(argument)) {
    for (Py_ssize_t i = 0; i < length(argument); ++i) {
      const Answer of_one = is_unremarkable(item(argument, i), gradients);
      if (of_one != Answer::kYes) return of_one;
    }
    return Answer::kYes;
  }
  View seen;
  if (!is_plain(argument) || !look(argument, &seen)) return Answer::kNo;
  if (seen.kind.code < kFloat) return Answer::kYes;  // integers have no gradients, and no signs of their own
  Answer remarkable = is_negated(argument);
  if (remarkable == Answer::kNo && gradients) remarkable = requires_grad(argument);
  return remarkable == Answer::kNo ? Answer::kYes : remarkable == Answer::kYes ? Answer::kNo : Answer::kError;
}

Answer is_unwatched(const OpCall *op, PyObject *arguments) {
  const Answer gradients = records_gradients();
  if (gradients == Answer::kError) return gradients;
  const Answer unremarkable = is_unremarkable(arguments, gradients == Answer::kYes);
  return unremarkable == Answer::kYes ? still_hold(op->questions) : unremarkable;
}

PyObject *call_op(PyObject *self, PyObject *arguments, PyObject *named) {
  const auto *op = reinterpret_cast<OpCall *>(self);
  if (named && PyDict_Size(named)) return PyObject_Call(op->dispatched, arguments, named);
  PyObject *out = replay_product(op, arguments);
  if (out || PyErr_Occurred()) return out;
  const Answer unwatched = is_unwatched(op, arguments);
  if (unwatched == Answer::kError) return nullptr;
  return PyObject_CallObject(unwatched == Answer::kYes ? op->kernel : op->dispatched, arguments);
}

bool are_product_arguments(PyObject *names) {
  if (PyTuple_Size(names) != kProductArgumentCount) return false;
  for (Py_ssize_t i = 0; i < kProductArgumentCount; ++i) {
    PyObject *name = PyTuple_GetItem(names, i);
    if (!PyUnicode_Check(name) || PyUnicode_CompareWithASCIIString(name, kProductArguments[i])) return false;
  }
  return true;
}

PyObject *new_op(PyTypeObject *type, PyObject *positional, PyObject *named) {
  static const char *names[] = {"known", "kernel", "dispatched", "questions", "names", nullptr};
  OpCall told = {};  // nothing is held yet
  PyObject *arguments;
  if (!PyArg_ParseTupleAndKeywords(positional, named, "O!OOO!O!", const_cast<char **>(names), &PyDict_Type, &told.known,
                                   &told.kernel, &told.dispatched, &PyTuple_Type, &told.questions, &PyTuple_Type,
                                   &arguments)) {
    return nullptr;
  }
  if (!view_of || !are_questions(told.questions) || !are_product_arguments(arguments)) {
    PyErr_SetString(PyExc_ValueError, "questions or names of arguments that make no sense, or `use` was not called");
    return nullptr;
  }
  return make_object<OpCall, kHeldByOp>(type, told);
}

PyType_Slot op_slots[] = {
    {Py_tp_doc, const_cast<char *>("An op that skips torch's dispatcher where nobody watches.")},
    {Py_tp_new, reinterpret_cast<void *>(new_op)},
    {Py_tp_call, reinterpret_cast<void *>(call_op)},
    {Py_tp_dealloc, reinterpret_cast<void *>((free_object<OpCall, kHeldByOp>))},
    {Py_tp_traverse, reinterpret_cast<void *>((visit_held<OpCall, kHeldByOp>))},
    {Py_tp_clear, reinterpret_cast<void *>((clear_held<OpCall, kHeldByOp>))},
    {0, nullptr},
};

PyType_Spec op_spec = {"blockscale.runtime._replay.OpCall", sizeof(OpCall), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, op_slots};

}  // namespace
