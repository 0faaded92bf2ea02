// What may have changed since a Replay was made: gradients, signs, weights, and the questions that it holds.
#pragma once
#include <Python.h>

#include <initializer_list>

#include "replay/record.h"

namespace {

PyObject *requires_grad_name = nullptr, *version_name = nullptr;

// Frees at the end of a scope.
struct Owned {
  PyObject *object;
  explicit Owned(PyObject *object) : object(object) {}
  Owned(const Owned &) = delete;
  Owned &operator=(const Owned &) = delete;
  ~Owned() { Py_DecRef(object); }
  explicit operator bool() const { return object != nullptr; }
};

enum class Answer { kYes, kNo, kError };

Answer truth(PyObject *answer) {
  const Owned held(answer);
  const int value = held ? PyObject_IsTrue(answer) : -1;
  return value < 0 ? Answer::kError : value ? Answer::kYes : Answer::kNo;
}

// Of one tensor, while gradients are recorded.
Answer requires_grad(PyObject *tensor) { return truth(PyObject_GetAttr(tensor, requires_grad_name)); }

// Whether numbers stand in memory with the other sign, which DLPack does not say.
Answer is_negated(PyObject *tensor) { return truth(PyObject_CallFunctionObjArgs(is_neg, tensor, nullptr)); }

Answer any_of(const Operands &given, Answer (*ask)(PyObject *tensor)) {
  for (PyObject *tensor : {given.x, given.others[kBias], given.others[kUpBias]}) {
    if (tensor == Py_None) continue;
    const Answer of_one = ask(tensor);
    if (of_one != Answer::kNo) return of_one;
  }
  return Answer::kNo;
}

Answer records_gradients() { return truth(PyObject_CallObject(is_grad_enabled, nullptr)); }

// Whether autograd has to see the call.
Answer needs_gradient(const Operands &given) {
  const Answer enabled = records_gradients();
  return enabled == Answer::kYes ? any_of(given, requires_grad) : enabled;
}

bool are_questions(PyObject *questions) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(questions); ++i) {
    PyObject *question = PyTuple_GetItem(questions, i);
    if (!PyTuple_Check(question) || PyTuple_Size(question) != 3) return false;
    if (!PyTuple_Check(PyTuple_GetItem(question, 1))) return false;
  }
  return true;
}

// Whether everything is answered as it was when a call was made. Answers are singletons.
Answer still_hold(PyObject *questions) {
  const Py_ssize_t count = PyTuple_Size(questions);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *question = PyTuple_GetItem(questions, i);
    PyObject *found = PyObject_Call(PyTuple_GetItem(question, 0), PyTuple_GetItem(question, 1), nullptr);
    if (!found) return Answer::kError;
    const bool same = found == PyTuple_GetItem(question, 2);
    Py_DecRef(found);
    if (!same) return Answer::kNo;
  }
  return Answer::kYes;
}

// Whether the weights are where they were: torch can give a tensor other memory.
bool weights_are_in_place(const Replay *call) {
  const Py_ssize_t count = PyTuple_Size(call->weights);
  for (Py_ssize_t i = 0; i < count; ++i) {
    View seen;
    if (!look(PyTuple_GetItem(call->weights, i), &seen) || seen.data != call->addresses[i]) return false;
  }
  return true;
}

// Whether torch has left those weights as they were whose changes it counts.
Answer weights_are_unchanged(const Replay *call) {
  long long version = 0;
  const Py_ssize_t count = PyTuple_Size(call->counted);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Owned of_one(PyObject_GetAttr(PyTuple_GetItem(call->counted, i), version_name));
    if (!of_one) return Answer::kError;
    const long long value = PyLong_AsLongLong(of_one.object);
    if (value == -1 && PyErr_Occurred()) return Answer::kError;
    version += value;
  }
  return version == call->version ? Answer::kYes : Answer::kNo;
}

}  // namespace
