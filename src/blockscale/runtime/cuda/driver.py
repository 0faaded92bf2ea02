"""The CUDA driver, by ctypes: the dozen functions that loading and launching take.

ctypes and not a binding, since a launch must cost microseconds: one foreign call, types set once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache, lru_cache
from typing import Any

import torch

SUCCESS = 0
OUT_OF_MEMORY = 2
INVALID_CONTEXT = 201
UNREADABLE_CODE = (200, 209)  # invalid image, no binary for this GPU

_HANDLE = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuCtxPopCurrent_v2": (_HANDLE,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLE, c_int),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "cuModuleLoadData": (_HANDLE, c_char_p),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p,
        c_int,
        c_uint,
        c_void_p,
        c_void_p,
        c_void_p,
        c_void_p,
        c_void_p,
        *(c_int,) * 4,
    ),
}


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig. Converting these numbers is most of a launch's cost, so they are kept."""

    _fields_ = (
        ("grid_x", c_uint),
        ("grid_y", c_uint),
        ("grid_z", c_uint),
        ("block_x", c_uint),
        ("block_y", c_uint),
        ("block_z", c_uint),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, of those whose value is integers."""

    _fields_ = (("id", c_int), ("_", c_int), ("value", c_int * 16))


# The kernel may start before the one ahead of it in the stream ends, and wait inside.
OVERLAP = LaunchAttribute(6, 0, (1,))


def cluster_of(blocks: tuple[int, int, int]) -> LaunchAttribute:
    """So many CTAs of the grid, by axis, start together and read each other's shared memory."""
    return LaunchAttribute(4, 0, blocks)


class CudaError(RuntimeError):
    """What the driver refused, and its words for it."""


@lru_cache(maxsize=1)
def load_driver() -> ctypes.CDLL:
    """Calls release the GIL: a launch waits where the queue of launches is full."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"no CUDA driver: {error}") from None
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    return library


def driver_version() -> str | None:
    """The newest CUDA that the driver knows, as in "13.0"; None where there is no driver."""
    try:
        library = load_driver()
    except CudaError:
        return None
    version = c_int()
    check(library.cuDriverGetVersion(byref(version)), "asking for the driver's version")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def check(status: int, doing: str) -> None:
    """`doing` says what was asked for, with its numbers."""
    if status == SUCCESS:
        return
    name, text = (_words(each, status) for each in ("cuGetErrorName", "cuGetErrorString"))
    if status == OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"{doing}: the GPU is out of memory ({name}: {text})")
    raise CudaError(f"{doing}: {name}: {text}")


def _words(function: str, status: int) -> str:
    words = c_char_p()
    getattr(load_driver(), function)(status, byref(words))
    return (words.value or f"error {status}".encode()).decode()


@contextmanager
def context(index: int) -> Iterator[None]:
    """Inside, torch's own context of a GPU is this thread's current one."""
    library = load_driver()
    check(library.cuCtxPushCurrent_v2(_primary(index)), f"switching to cuda:{index}")
    try:
        yield
    finally:
        library.cuCtxPopCurrent_v2(byref(c_void_p()))


def capture_id(stream: int) -> int | None:
    """Which CUDA graph a capturing stream is captured into; None where the driver cannot say."""
    ask = getattr(load_driver(), "cuStreamGetCaptureInfo_v2", None)  # since CUDA 11.3
    if ask is None:
        return None
    status, found = c_int(), c_uint64()
    asked = ask(c_void_p(stream), byref(status), byref(found), None, None, None)
    check(asked, "asking which CUDA graph is captured")
    return found.value


def adopt_context(index: int) -> bool:
    """Make torch's own context of a GPU this thread's, for good, if the thread has none: as torch
    does at its first call in a thread. A launch does not, so that cuBLAS would find a thread of
    autograd without one, and warn."""
    library, now = load_driver(), c_void_p()
    check(library.cuCtxGetCurrent(byref(now)), "asking for the context of this thread")
    if now.value is not None:
        return False
    check(library.cuCtxSetCurrent(_primary(index)), f"switching to cuda:{index}")
    return True


@cache
def _primary(index: int) -> c_void_p:
    """Kept for the process, as torch keeps it."""
    torch.cuda.init()
    library, device, primary = load_driver(), c_int(), c_void_p()
    check(library.cuDeviceGet(byref(device), index), f"looking for cuda:{index}")
    check(library.cuDevicePrimaryCtxRetain(byref(primary), device), f"starting cuda:{index}")
    return primary
