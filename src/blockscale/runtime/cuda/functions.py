"""A kernel on a GPU: loaded once, then launched at the price of one foreign call."""

from __future__ import annotations

import ctypes
from ctypes import addressof, byref, c_int, c_void_p
from threading import Lock
from typing import NamedTuple

import torch

from blockscale.runtime import torch_private
from blockscale.runtime.cuda.build import Build
from blockscale.runtime.cuda.compile import cubin
from blockscale.runtime.cuda.driver import (
    INVALID_CONTEXT,
    OVERLAP,
    UNREADABLE_CODE,
    LaunchAttribute,
    LaunchConfig,
    adopt_context,
    check,
    cluster_of,
    context,
    driver_version,
    load_driver,
)
from blockscale.runtime.target import target_of

# CUfunction_attribute
_STATIC_SHARED, _LOCAL, _REGISTERS, _MAX_DYNAMIC_SHARED = 1, 3, 4, 8

# grid, threads, shared bytes, stream, overlap, cluster
_Shape = tuple[tuple[int, int, int], int, int, int, bool, int]
_Kept = tuple[int, LaunchConfig, "ctypes.Array[LaunchAttribute]"]  # address of what follows
_MOST_CONFIGS = 1024  # kept of a function: more would be shapes that do not come back


class Prepared(NamedTuple):
    """A launch for others to make: they add stream and arguments, and where the attributes are."""

    launch: int  # address of cuLaunchKernelEx
    function: int
    config: bytes  # a LaunchConfig
    attributes: bytes


class Function:
    """A loaded kernel. Handles live as long as the process, like torch's context."""

    def __init__(self, build: Build, index: int, code: bytes) -> None:
        self.build = build
        self._index = index
        self._library = load_driver()
        self._launch = self._library.cuLaunchKernelEx
        self._handle = self._load(code)
        self._configs: dict[_Shape, _Kept] = {}
        self.registers = self._attribute(_REGISTERS)  # of a thread
        self.shared_bytes = self._attribute(_STATIC_SHARED)  # of a CTA, beyond what a launch asks
        self.local_bytes = self._attribute(_LOCAL)  # of a thread: spills and indexed arrays
        self._max_shared = self._attribute(_MAX_DYNAMIC_SHARED)  # until it is raised

    def __repr__(self) -> str:
        return f"<{self.build} on cuda:{self._index}, {self.registers} registers>"

    def occupancy(self, threads: int, shared: int) -> int:
        """CTAs that an SM holds at a time; `shared` bytes are dynamic."""
        count = c_int()
        with context(self._index):
            if shared > self._max_shared:
                self._raise_shared(shared)
            ask = self._library.cuOccupancyMaxActiveBlocksPerMultiprocessor
            status = ask(byref(count), self._handle, threads, shared)
        check(status, f"{self.build}: occupancy of {threads} threads, {shared} shared bytes")
        return count.value

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        stream: int,
        arguments: ctypes.Structure,
        overlap: bool = False,
        cluster: int = 1,
    ) -> None:
        """Asynchronous. The driver copies `arguments`; what they point to must stay alive.

        overlap: start before the kernel ahead in the stream ends. For kernels that wait inside,
        before they read what it may have written or write anything; from sm_90 on.
        cluster: so many CTAs along the second axis of the grid start together.
        """
        shape = grid, threads, shared, stream, overlap, cluster
        config = self._configs.get(shape) or self._configure(shape)
        struct = c_void_p(addressof(arguments))
        facts = config[0], self._handle, addressof(struct), None
        # The default stream is that of the current context, whichever GPU that is.
        if torch_private.current_device() == self._index:
            status = self._launch(*facts)
            if status == INVALID_CONTEXT and adopt_context(self._index):
                status = self._launch(*facts)  # of a thread that had not used CUDA yet
        else:
            status = INVALID_CONTEXT
        if status == INVALID_CONTEXT:
            with context(self._index):
                status = self._launch(*facts)
        if status:
            check(status, f"{self.build}: grid {grid}, {threads} threads, {shared} shared bytes")

    def prepared(
        self, grid: tuple[int, int, int], threads: int, shared: int, overlap: bool, cluster: int
    ) -> Prepared:
        """Of launches as `launch` makes them."""
        _, config, attributes = self._configure((grid, threads, shared, 0, overlap, cluster))
        address = ctypes.cast(self._launch, c_void_p).value or 0
        return Prepared(address, self._handle, bytes(config), bytes(attributes))

    def _configure(self, shape: _Shape) -> _Kept:
        grid, threads, shared, stream, overlap, cluster = shape
        if shared > self._max_shared:
            with context(self._index):
                self._raise_shared(shared)
        if len(self._configs) >= _MOST_CONFIGS:
            self._configs.clear()
        wanted = [OVERLAP] if overlap else []
        if cluster > 1:
            wanted.append(cluster_of((1, cluster, 1)))
        attributes = (LaunchAttribute * len(wanted))(*wanted)
        first = addressof(attributes) if wanted else None
        config = LaunchConfig(*grid, threads, 1, 1, shared, stream, first, len(wanted))
        self._configs[shape] = kept = addressof(config), config, attributes
        return kept

    def _load(self, code: bytes) -> int:
        module, handle, library = c_void_p(), c_void_p(), self._library
        doing = f"loading {self.build} on cuda:{self._index}"
        with context(self._index):
            status = library.cuModuleLoadData(byref(module), code)
            if status in UNREADABLE_CODE:
                doing += f" (the driver knows CUDA {driver_version()}: is NVRTC newer?)"
            check(status, doing)
            name = self.build.entry.encode()
            check(library.cuModuleGetFunction(byref(handle), module, name), doing)
            if hasattr(library, "cuFuncLoad"):  # since 12.4; else maybe at the first launch
                check(library.cuFuncLoad(handle), doing)
        return handle.value or 0

    def _attribute(self, attribute: int) -> int:
        value = c_int()
        with context(self._index):
            status = self._library.cuFuncGetAttribute(byref(value), attribute, self._handle)
        check(status, f"{self.build}: attribute {attribute}")
        return value.value

    def _raise_shared(self, shared: int) -> None:
        """More than 48 KiB must be asked for, once."""
        status = self._library.cuFuncSetAttribute(self._handle, _MAX_DYNAMIC_SHARED, shared)
        check(status, f"{self.build}: {shared} bytes of dynamic shared memory")
        self._max_shared = shared


_loaded: dict[tuple[Build, torch.device], Function] = {}
_loading = Lock()


def function(build: Build, device: torch.device) -> Function:
    """The kernel on a GPU: compiled and loaded at the first call, a lookup after that."""
    found = _loaded.get((build, device))
    return found if found is not None else _load(build, device)


def _load(build: Build, device: torch.device) -> Function:
    index = torch.cuda.current_device() if device.index is None else device.index
    key = build, torch.device("cuda", index)
    with _loading:
        found = _loaded.get(key)
        if found is not None:
            return found
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{build} is not loaded, and nothing can be compiled or loaded while a CUDA graph "
                "is captured: make the same call once before capturing. `blockscale warmup` "
                "compiles a model's kernels beforehand, so that this first call is quick"
            )
        loaded = Function(build, index, cubin(build, target_of(key[1])))
        _loaded[key] = loaded
        return loaded


def current_stream(device: torch.device) -> int:
    """torch's current stream as the driver's handle; far cheaper than torch.cuda.current_stream."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(torch_private.raw_stream(index))
