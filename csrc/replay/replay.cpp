// The next call of a product on a GPU, as Python has made it before: checked, launched and returned
// with little Python in between, which costs the host more than the launch does.
//
// A Replay holds what a settled plan has found out (see blockscale/ops/replay.py). `run` looks through
// those of a weight for one that agrees with the call in everything. Where none does it returns None:
// Python then takes the call, with every check and every error message, and makes another Replay where
// it can.
//
// An op's calls come by an OpCall, which is asked before torch's dispatcher is.
//
// Only CPython's limited API is used, and of torch the table of C functions that DLPack defines: one file
// serves every Python from 3.10 on and every torch. References are counted by the interpreter's functions: the
// macros, compiled with older headers, would count those to objects that live forever in newer Pythons.

#include <Python.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "replay/op.h"
#include "replay/type.h"

namespace {

constexpr int kVersion = 6;  // that runtime/replay.py asks for

// use(exchange, tensor, parameter, is_grad_enabled): torch's, once.
PyObject *use(PyObject *, PyObject *arguments) {
  PyObject *capsule, *tensor, *parameter, *grad_enabled;
  if (!PyArg_ParseTuple(arguments, "OOOO", &capsule, &tensor, &parameter, &grad_enabled)) return nullptr;
  const auto *exchange = static_cast<Exchange *>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (!exchange) return nullptr;
  if (exchange->major != 1 || !exchange->view) {
    PyErr_Format(PyExc_ImportError, "torch speaks DLPack %u.%u", exchange->major, exchange->minor);
    return nullptr;
  }
  PyObject *asks_sign = PyObject_GetAttrString(tensor, "is_neg");
  if (!asks_sign) return nullptr;
  for (PyObject *each : {tensor, parameter, grad_enabled}) Py_IncRef(each);
  is_neg = asks_sign;
  tensor_type = tensor;
  parameter_type = parameter;
  is_grad_enabled = grad_enabled;
  view_of = exchange->view;
  Py_IncRef(Py_None);
  return Py_None;
}

// is_on(name): whether a variable of the environment is set to something, and not to 0. os.environ takes a microsecond
// to look a variable up that is not there. What is assigned to it is seen here too; what goes around it, only here.
PyObject *is_on(PyObject *, PyObject *name) {
  const Owned encoded(PyUnicode_EncodeFSDefault(name));
  const char *variable = encoded ? PyBytes_AsString(encoded.object) : nullptr;
  if (!variable) return nullptr;
  const char *value = std::getenv(variable);
  return PyBool_FromLong(value && *value && std::strcmp(value, "0"));
}

PyMethodDef functions[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL,
     "run(calls, x, bias, up_bias, group_sizes, up, activation): the result, or None where none of the calls "
     "is like this one."},
    {"places", places, METH_O, "places(tensors): bytes that say where they are in memory, or None."},
    {"is_on", is_on, METH_O, "is_on(name): whether a variable of the environment is set, and not to 0."},
    {"use", use, METH_VARARGS, "use(exchange, tensor, parameter, is_grad_enabled): torch's, once."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_replay", "See csrc/replay/replay.cpp.", -1, functions,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__replay() {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return nullptr;
  requires_grad_name = PyUnicode_InternFromString("requires_grad");
  version_name = PyUnicode_InternFromString("_version");
  PyObject *type = PyType_FromSpec(&spec), *op_type = PyType_FromSpec(&op_spec);
  replay_type = reinterpret_cast<PyTypeObject *>(type);  // keeps its reference
  if (requires_grad_name && version_name && type && op_type &&
      !PyModule_AddIntConstant(module, "VERSION", kVersion) && !PyModule_AddObjectRef(module, "Replay", type) &&
      !PyModule_AddObjectRef(module, "OpCall", op_type)) {
    Py_DecRef(op_type);
    return module;
  }
  Py_DecRef(module);
  return nullptr;
}
