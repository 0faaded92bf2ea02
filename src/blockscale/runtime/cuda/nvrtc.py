"""NVRTC: CUDA C++ to machine code, in this process and without a toolkit.

Reached through `cuda.bindings`, which torch's CUDA packages for Linux bring along with NVRTC
itself; elsewhere both are in `blockscale[cuda]`. A compilation releases the GIL.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_HOW = "pip install 'blockscale[cuda]', or a torch built with CUDA, brings it"


class CompilationError(RuntimeError):
    """A kernel that does not compile, with everything that NVRTC said."""


class Nvrtc(NamedTuple):
    library: ModuleType
    version: str  # "13.0"
    architectures: tuple[int, ...]  # 80 for sm_80

    def compile(self, source: str, name: str, options: list[str], output: str = "CUBIN") -> bytes:
        """A cubin, or PTX, of `source`, which is called `name` in messages."""
        nvrtc = self.library
        status, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
        self._check(status, name)
        try:
            flags = [option.encode() for option in options]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                text = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
                raise CompilationError(f"{status.name}, options {' '.join(options)}\n{text}")
            return self._read(program, output)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    @property
    def build(self) -> str:
        """Which build of NVRTC this is, as it says itself; `version` leaves out the patch."""
        return _build_of(self)

    def _read(self, program: Any, what: str) -> bytes:
        status, size = getattr(self.library, f"nvrtcGet{what}Size")(program)
        self._check(status, what)
        buffer = bytearray(size)
        (status,) = getattr(self.library, f"nvrtcGet{what}")(program, buffer)
        self._check(status, what)
        return bytes(buffer)

    def _check(self, status: Any, what: str) -> None:
        if status != self.library.nvrtcResult.NVRTC_SUCCESS:
            raise CompilationError(f"NVRTC {self.version}: {status.name} for {what}")


@lru_cache(maxsize=1)
def _build_of(nvrtc: Nvrtc) -> str:
    """The comments at the head of its PTX: "Cuda compilation tools, release 13.0, V13.0.88"."""
    options = [f"--gpu-architecture=compute_{max(nvrtc.architectures)}"]
    ptx = nvrtc.compile("", "empty.cu", options, "PTX").decode()
    return "\n".join(line for line in ptx.splitlines() if line.startswith("//"))


@lru_cache(maxsize=1)
def load_nvrtc() -> Nvrtc | str:
    """NVRTC, or why there is none and how to get it."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return f"no NVRTC: cuda-bindings is not installed ({_HOW})"
    try:
        _, major, minor = nvrtc.nvrtcVersion()
        _, architectures = nvrtc.nvrtcGetSupportedArchs()
        _preload_builtins(f"{major}.{minor}")
    except (RuntimeError, ImportError, OSError) as error:  # its library is looked for at a call
        reason = str(error).partition("\n")[0]
        return f"no NVRTC: {reason} ({_HOW})"
    return Nvrtc(nvrtc, f"{major}.{minor}", tuple(architectures))


def _preload_builtins(version: str) -> None:
    """NVRTC opens a second library by its name alone, and packages of 13.0, which torch 2.11
    brings, do not say where that is: beside the first."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    for file in Path(path).parent.glob(f"libnvrtc-builtins.so.{version}*") if path else ():
        ctypes.CDLL(str(file))
