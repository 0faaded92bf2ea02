"""CUDA kernels that are launched as on a GPU and run by threads of the host."""

import ctypes
from functools import cache
from pathlib import Path

from native.host_library import host_library

SOURCE = Path(__file__).parent / "cuda_host.cpp"


class HostFunction:
    """Stands in for a `Function` on a GPU."""

    def __init__(self, build):
        defined = [f"-D{name}={value}" for name, value in build.defines]
        defined += [f'-DKERNEL_FILE="{build.path}"', f"-DKERNEL={build.entry}"]
        self.library = host_library(
            "-std=c++20", "-O0", "-ffp-contract=off", "-pthread", "-w", *defined, SOURCE
        )

    def launch(self, grid, threads, shared, stream, arguments, overlap=False):
        assert self.library.size_of_arguments() == ctypes.sizeof(arguments)
        self.library.run(ctypes.byref(arguments), *grid, threads)


compiled = cache(HostFunction)


def on_the_host(monkeypatch, *modules):
    """What these modules launch runs here."""
    for module in modules:
        monkeypatch.setattr(module, "function", lambda build, device: compiled(build))
        monkeypatch.setattr(module, "current_stream", lambda device: 0)


def product_on_the_host(multiply, x, w, out):
    """Stands in for `decoded._product`: sums in float64."""
    wide = multiply(x.double(), w.double())
    return wide.float() if out is None else out.copy_(wide)
