// A Replay: what a settled plan has found out.
#pragma once
#include <Python.h>

#include "replay/tensors.h"

namespace {

constexpr int kMostWeightTensors = 8;  // codes, scales, tensor scales and tables of gate and up
constexpr Py_ssize_t kMostArgumentBytes = 4096;  // that a kernel takes

// The driver's.

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void *stream, *attributes;
  unsigned attribute_count;
};

using Launch = int (*)(const LaunchConfig *config, void *function, void **parameters, void **extra);

PyTypeObject *replay_type = nullptr;

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
  PyObject *workspace;                 // (stream) -> bytes, which stand there; or None
  Py_ssize_t workspace_at;
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
    &Replay::arguments, &Replay::x_map,  &Replay::workspace, &Replay::config, &Replay::attributes,
    &Replay::weights, &Replay::counted, &Replay::questions, &Replay::stream, &Replay::stream_arguments,
    &Replay::empty,  &Replay::empty_arguments};

}  // namespace
