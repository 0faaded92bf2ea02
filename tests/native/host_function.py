"""CUDA kernels that are launched as on a GPU and run by the emulator (tests/emulator)."""

import ctypes
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import torch

from native.host_library import emulator_path, kernel_object, made

COMPILED = (
    "-std=c++20", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-fno-gnu-unique", "-w",
    "-c",
)  # fmt: skip
# Every load and store of the kernel calls the emulator, as it would call gcc's thread sanitizer.
WATCHED = ("-O1", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0")
# What is static in the library is shared memory, so no start files add to it.
LINKED = ("-shared", "-nostartfiles")
TIMINGS = {"earliest": 0, "latest": 1, "any": 2}


@dataclass(frozen=True)
class Schedule:
    """When asynchronous copies and products are carried out, and in which order threads run."""

    timing: str = "latest"
    seed: int = 0
    resident: int = 64  # clusters at a time

    def __str__(self):
        return f"{self.timing}-{self.seed}"


SCHEDULES = [
    Schedule("earliest"), Schedule("latest"), Schedule("latest", 1), Schedule("any", 2),
]  # fmt: skip


class EmulatedError(AssertionError):
    """What a GPU would punish."""


class LaunchFacts(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        *(
            (name, ctypes.c_uint)
            for name in ("threads", "cluster", "shared", "resident", "seed", "timing")
        ),
    ]


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("dsmem_loads", "switches", "async_copies")]


@cache
def emulator():
    library = ctypes.CDLL(str(emulator_path()))
    library.emulated_launch.restype = ctypes.c_char_p
    library.emulated_counts.restype = ctypes.POINTER(Counts)
    pointer = ctypes.c_void_p
    library.cuTensorMapEncodeTiled.argtypes = (
        pointer, ctypes.c_int, ctypes.c_uint, *(pointer,) * 5, *(ctypes.c_int,) * 4,
    )  # fmt: skip
    return library


class HostFunction:
    """Stands in for a `Function` on a GPU."""

    schedule = Schedule()

    def __init__(self, build, watched=True):
        defined = [f"-D{name}={value}" for name, value in build.defines]
        defined += [f'-DKERNEL_FILE="{build.path}"', f"-DKERNEL={build.entry}"]
        options = WATCHED if watched else ("-O0",)
        compiled = kernel_object(*COMPILED, *options, *defined)
        self.library = ctypes.CDLL(str(made(*LINKED, compiled, emulator_path())))
        for name in ("first_shared", "end_of_shared"):
            getattr(self.library, name).restype = ctypes.c_void_p

    def launch(self, grid, threads, shared, stream, arguments, overlap=False, cluster=1):
        size = ctypes.sizeof(arguments)
        assert self.library.size_of_arguments() == size
        memory = (ctypes.c_ubyte * (size + 64))()  # as aligned as a GPU has arguments
        begin = -(-ctypes.addressof(memory) // 64) * 64
        ctypes.memmove(begin, ctypes.byref(arguments), size)
        how = HostFunction.schedule
        timing = TIMINGS[how.timing]
        facts = LaunchFacts(grid, threads, cluster, shared, how.resident, how.seed, timing)
        failed = emulator().emulated_launch(
            self.library.run_kernel,
            ctypes.c_void_p(self.library.first_shared()),
            ctypes.c_void_p(self.library.end_of_shared()),
            ctypes.byref(facts),
            ctypes.c_void_p(begin),
        )
        if failed:
            raise EmulatedError(failed.decode())


compiled = cache(HostFunction)


def counts():
    """Of the last launch."""
    return emulator().emulated_counts().contents


@contextmanager
def scheduled(schedule):
    before, HostFunction.schedule = HostFunction.schedule, schedule
    try:
        yield
    finally:
        HostFunction.schedule = before


def on_the_host(monkeypatch, *modules, watched=True):
    """What these modules launch runs here; `watched`, races on shared memory are reported."""
    for module in modules:
        monkeypatch.setattr(module, "function", lambda build, device: compiled(build, watched))
        monkeypatch.setattr(module, "current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def maps_on_the_host(monkeypatch):
    """Tensor maps are made by the emulator's driver function."""
    maps = import_module("blockscale.runtime.cuda.tensor_map")
    monkeypatch.setattr(maps, "load_driver", emulator)
    monkeypatch.setattr(maps, "context", lambda index: nullcontext())


def product_on_the_host(multiply, x, w, out):
    """Stands in for `decoded._product`: sums in float64."""
    wide = multiply(x.double(), w.double())
    return wide.float() if out is None else out.copy_(wide)
