"""CUDA kernels: compiled at first use, kept on disk, loaded once per GPU, launched cheaply.

    build = Build("stream.cu", "stream", (("ROWS", 4),))
    kernel = function(build, x.device)                # compiles, or reads the cache; then a lookup
    kernel.launch((grid, 1, 1), 128, shared, current_stream(x.device), arguments)

Every kernel takes one parameter, a struct by value, which `arguments` mirrors as a
ctypes.Structure. Importing this touches no GPU and no compiler.
"""

from blockscale.runtime.cuda.arch import TARGETS, arch_of
from blockscale.runtime.cuda.build import FOLDER, Build
from blockscale.runtime.cuda.cache import Cache, Entry, open_cache
from blockscale.runtime.cuda.compile import cubin, is_cached
from blockscale.runtime.cuda.compile_all import compile_all
from blockscale.runtime.cuda.driver import CudaError, capture_id, driver_version
from blockscale.runtime.cuda.functions import Function, current_stream, function
from blockscale.runtime.cuda.nvrtc import CompilationError, load_nvrtc
from blockscale.runtime.cuda.refusal import cuda_refusal
from blockscale.runtime.cuda.tensor_map import matrix_map, panel_map, tensor_map
from blockscale.runtime.cuda.timing import EventStopwatch, GraphStopwatch

__all__ = [
    "FOLDER",
    "TARGETS",
    "Build",
    "Cache",
    "CompilationError",
    "CudaError",
    "Entry",
    "EventStopwatch",
    "Function",
    "GraphStopwatch",
    "arch_of",
    "capture_id",
    "compile_all",
    "cubin",
    "cuda_refusal",
    "current_stream",
    "driver_version",
    "function",
    "is_cached",
    "load_nvrtc",
    "matrix_map",
    "open_cache",
    "panel_map",
    "tensor_map",
]
