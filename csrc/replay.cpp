// The next call of a product on a GPU, as Python has made it before: checked, launched and returned
// with little Python in between, which costs the host more than the launch does.
//
// A Replay holds what a settled plan has found out (see blockscale/ops/replay.py). `run` looks through
// those of a weight for one that agrees with the call in everything. Where none does it returns None:
// Python then takes the call, with every check and every error message, and makes another Replay where
// it can.
//
// Only CPython's limited API is used, and of torch the table of C functions that DLPack defines: one file
// serves every Python from 3.10 on and every torch. References are counted by the interpreter's functions: the
// macros, compiled with older headers, would count those to objects that live forever in newer Pythons.

#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

constexpr int kVersion = 4;  // that runtime/replay.py asks for
constexpr int kMostDimensions = 8;
constexpr int kMostWeightTensors = 8;  // codes, scales, tensor scales and tables of gate and up
constexpr Py_ssize_t kMostArgumentBytes = 4096;  // that a kernel takes
constexpr int64_t kCopied = 16;                  // bytes of x that the kernel copies at a time

// --- DLPack 1, as torch.Tensor.__dlpack_c_exchange_api__ offers it -------------------------------

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

// --- the driver's --------------------------------------------------------------------------------

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void *stream, *attributes;
  unsigned attribute_count;
};

using Launch = int (*)(const LaunchConfig *config, void *function, void **parameters, void **extra);

// --- what `use` was told: the same for every call ------------------------------------------------

int (*view_of)(void *tensor, View *view) = nullptr;
PyObject *tensor_type = nullptr, *parameter_type = nullptr, *is_grad_enabled = nullptr;
PyObject *is_neg = nullptr;  // torch.Tensor's, not yet bound to one: found once
PyObject *requires_grad_name = nullptr, *version_name = nullptr;
PyTypeObject *replay_type = nullptr;

// A tensor of some kind and shape.
struct Facts {
  Kind kind;
  int64_t shape[kMostDimensions];

  bool agree(const View &seen) const {
    return !std::memcmp(&kind, &seen.kind, sizeof kind) &&
           !std::memcmp(shape, seen.shape, sizeof(int64_t) * kind.dimensions);
  }
};

// What a call has beside x, in the order of `run`; None where it has none.
enum Other { kBias, kUpBias, kGroupSizes, kOthers };

struct Operands {
  PyObject *x;
  PyObject *const *others;  // kOthers
  PyObject *up, *activation;
};

struct Expected {
  bool present;
  Facts facts;
  Py_ssize_t at;  // where its address is put
};

struct Replay {
  PyObject_HEAD
  PyObject *key;                       // by which Python finds it
  PyObject *kept;                      // what must live as long
  PyObject *up, *activation;           // the very same objects, or None
  PyObject *arguments;                 // bytes: the kernel's, but for what follows
  Py_ssize_t x_at, x_stride_at, out_at;
  PyObject *x_map;                     // (address, stride) -> bytes, which come first; or None
  PyObject *config, *attributes;       // bytes
  PyObject *weights;                   // tensors, which must be at these addresses:
  const char *addresses[kMostWeightTensors];
  PyObject *counted;                   // of these, those that were promised to be counted; their versions' sum:
  long long version;
  PyObject *questions;                 // (callable, arguments, answer), each
  PyObject *stream, *stream_arguments;
  PyObject *empty, *empty_arguments;   // make the result
  Launch launch;
  void *function;
  Facts x;
  Expected others[kOthers];
};

// All that one holds.
constexpr PyObject *Replay::*kHeld[] = {
    &Replay::key,    &Replay::kept,      &Replay::up,     &Replay::activation,
    &Replay::arguments, &Replay::x_map,  &Replay::config, &Replay::attributes,
    &Replay::weights, &Replay::counted, &Replay::questions, &Replay::stream, &Replay::stream_arguments,
    &Replay::empty,  &Replay::empty_arguments};

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

Answer truth(PyObject *answer) {
  const Owned held(answer);
  const int value = held ? PyObject_IsTrue(answer) : -1;
  return value < 0 ? Answer::kError : value ? Answer::kYes : Answer::kNo;
}

// Whether autograd has to see the call.
Answer needs_gradient(const Operands &given) {
  const Answer enabled = truth(PyObject_CallObject(is_grad_enabled, nullptr));
  if (enabled != Answer::kYes) return enabled;
  for (PyObject *tensor : {given.x, given.others[kBias], given.others[kUpBias]}) {
    if (tensor == Py_None) continue;
    const Answer of_one = truth(PyObject_GetAttr(tensor, requires_grad_name));
    if (of_one != Answer::kNo) return of_one;
  }
  return Answer::kNo;
}

// Whether numbers stand in memory with the other sign, which DLPack does not say.
Answer is_negated(const Operands &given) {
  for (PyObject *tensor : {given.x, given.others[kBias], given.others[kUpBias]}) {
    if (tensor == Py_None) continue;
    const Answer of_one = truth(PyObject_CallFunctionObjArgs(is_neg, tensor, nullptr));
    if (of_one != Answer::kNo) return of_one;
  }
  return Answer::kNo;
}

// Whether everything that was asked when the call was made is answered as it was. Answers are singletons.
Answer still_holds(const Replay *call) {
  const Py_ssize_t count = PyTuple_Size(call->questions);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *question = PyTuple_GetItem(call->questions, i);
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
  if (needs_gradient(given) != Answer::kNo || is_negated(given) != Answer::kNo) return nullptr;
  if (still_holds(call) != Answer::kYes || weights_are_unchanged(call) != Answer::kYes) return nullptr;
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

// run(calls, x, bias, bias of up, group sizes, up, activation): the result, or None.
PyObject *run(PyObject *, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 4 + kOthers || !PyList_Check(arguments[0]) || !view_of) {
    PyErr_SetString(PyExc_TypeError,
                    "run(list of Replays, x, bias, up_bias, group_sizes, up, activation), after use(...)");
    return nullptr;
  }
  PyObject *calls = arguments[0];
  const Operands given = {arguments[1], arguments + 2, arguments[2 + kOthers], arguments[3 + kOthers]};
  if (are_plain(given)) {
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
  }
  Py_IncRef(Py_None);
  return Py_None;
}

// --- making one ----------------------------------------------------------------------------------

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

bool are_questions(PyObject *questions) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(questions); ++i) {
    PyObject *question = PyTuple_GetItem(questions, i);
    if (!PyTuple_Check(question) || PyTuple_Size(question) != 3) return false;
    if (!PyTuple_Check(PyTuple_GetItem(question, 1))) return false;
  }
  return true;
}

bool is_sound(const Replay *call) {
  const Py_ssize_t size = PyBytes_Size(call->arguments);
  for (const Py_ssize_t at : {call->x_at, call->x_stride_at, call->out_at, call->others[kBias].at,
                              call->others[kUpBias].at, call->others[kGroupSizes].at}) {
    if (at < 0 || at + 8 > size || size > kMostArgumentBytes) return false;
  }
  return PyBytes_Size(call->config) == sizeof(LaunchConfig) && call->launch && are_questions(call->questions);
}

PyObject *new_replay(PyTypeObject *type, PyObject *positional, PyObject *named) {
  static const char *names[] = {
      "key", "kept", "x", "bias", "up_bias", "group_sizes", "up", "activation", "arguments", "x_at",
      "x_stride_at", "out_at", "bias_at", "up_bias_at", "group_sizes_at", "x_map", "launch", "function",
      "config", "attributes", "weights", "addresses", "counted", "version", "questions", "stream", "stream_arguments",
      "empty", "empty_arguments", nullptr};
  Replay told = {};  // nothing is held yet
  PyObject *x, *others[kOthers], *addresses;
  unsigned long long entry, function;
  if (!PyArg_ParseTupleAndKeywords(
          positional, named, "OOOOOOOOSnnnnnnOKKSSO!O!O!LO!OO!OO!", const_cast<char **>(names), &told.key, &told.kept,
          &x, &others[kBias], &others[kUpBias], &others[kGroupSizes], &told.up, &told.activation,
          &told.arguments, &told.x_at, &told.x_stride_at, &told.out_at, &told.others[kBias].at,
          &told.others[kUpBias].at, &told.others[kGroupSizes].at, &told.x_map, &entry, &function, &told.config,
          &told.attributes, &PyTuple_Type, &told.weights, &PyTuple_Type, &addresses, &PyTuple_Type, &told.counted, &told.version, &PyTuple_Type, &told.questions,
          &told.stream, &PyTuple_Type, &told.stream_arguments, &told.empty, &PyTuple_Type,
          &told.empty_arguments)) {
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
  PyObject *made = PyType_GenericAlloc(type, 0);
  if (!made) return nullptr;
  for (const auto member : kHeld) Py_IncRef(told.*member);
  constexpr size_t kHead = offsetof(Replay, key);  // the interpreter's
  std::memcpy(reinterpret_cast<char *>(made) + kHead, reinterpret_cast<char *>(&told) + kHead,
              sizeof told - kHead);
  return made;
}

// Weights know their calls, and calls the weights: in circles, where two are gate and up of each other.
int visit_replay(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(reinterpret_cast<PyObject *>(Py_TYPE(self)));
  for (const auto member : kHeld) Py_VISIT(reinterpret_cast<Replay *>(self)->*member);
  return 0;
}

int clear_replay(PyObject *self) {
  for (const auto member : kHeld) {
    PyObject *held = reinterpret_cast<Replay *>(self)->*member;
    reinterpret_cast<Replay *>(self)->*member = nullptr;
    Py_DecRef(held);
  }
  return 0;
}

void free_replay(PyObject *self) {
  PyObject_GC_UnTrack(self);
  clear_replay(self);
  PyTypeObject *type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DecRef(reinterpret_cast<PyObject *>(type));
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
    {Py_tp_dealloc, reinterpret_cast<void *>(free_replay)},
    {Py_tp_traverse, reinterpret_cast<void *>(visit_replay)},
    {Py_tp_clear, reinterpret_cast<void *>(clear_replay)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"blockscale.runtime._replay.Replay", sizeof(Replay), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

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
    {"is_on", is_on, METH_O, "is_on(name): whether a variable of the environment is set, and not to 0."},
    {"use", use, METH_VARARGS, "use(exchange, tensor, parameter, is_grad_enabled): torch's, once."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_replay", "See csrc/replay.cpp.", -1, functions,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__replay() {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return nullptr;
  requires_grad_name = PyUnicode_InternFromString("requires_grad");
  version_name = PyUnicode_InternFromString("_version");
  PyObject *type = PyType_FromSpec(&spec);
  replay_type = reinterpret_cast<PyTypeObject *>(type);
  if (requires_grad_name && version_name && type && !PyModule_AddIntConstant(module, "VERSION", kVersion)) {
    Py_IncRef(type);  // one for the module, one for `run`
    if (!PyModule_AddObject(module, "Replay", type)) return module;
    Py_DecRef(type);
  }
  Py_DecRef(module);
  return nullptr;
}
