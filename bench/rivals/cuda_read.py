"""The ceiling on a GPU: a plain read of as many bytes as a weight has, by bench/read.cu.

How fast memory is depends on how much is read: small reads end before all of it is busy. So each
size has a ceiling of its own. Reads that may start before the one ahead ends are the floor of a
layer that does so too; the others, of one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import Structure, c_longlong, c_uint, c_void_p
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.rivals.contract import Prepared, Rival
from bench.timing import Call
from blockscale.runtime import device_of
from blockscale.runtime.cuda import (
    Build,
    cubin,
    cuda_refusal,
    current_stream,
    function,
)

SOURCE = Path(__file__).parents[1] / "read.cu"
_THREADS = 256
_BLOCKS = 8  # of a multiprocessor: as many threads as it holds
_WIDTH = 16


class Arguments(Structure):
    _fields_ = (("from", c_void_p), ("count", c_longlong), ("to", c_void_p), ("never", c_uint))


@dataclass(frozen=True)
class CudaRead(Rival):
    bits: float  # of a weight
    overlap: bool
    only_rows: tuple[int, ...] = ()
    role: str = "ceiling"

    @property
    def name(self) -> str:
        return f"read of {self.bits:g} bits" + ("" if self.overlap else ", alone")

    def missing(self) -> str:
        return cuda_refusal(device_of(torch.device("cuda", 0))) or ""

    def compilations(
        self, shapes: Sequence[tuple[int, int]], rows: Sequence[int]
    ) -> list[Callable[[], object]]:
        return [partial(cubin, build(self.overlap), device_of(torch.device("cuda", 0)).arch)]

    def prepare(self, w: Tensor) -> CudaMemory:
        units = -(-round(w.numel() * self.bits) // (8 * _WIDTH))
        memory = torch.randint(0, 256, (units * _WIDTH,), dtype=torch.uint8, device=w.device)
        return CudaMemory(memory, self.overlap)


def build(overlap: bool) -> Build:
    defines = (("BS_THREADS", _THREADS), ("BS_OVERLAP", int(overlap)))
    return Build(str(SOURCE), "read", defines)


@dataclass(frozen=True)
class CudaMemory(Prepared):
    memory: Tensor
    overlap: bool

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def copy(self) -> CudaMemory:
        return CudaMemory(self.memory.clone(), self.overlap)

    def decoded(self) -> Tensor:
        raise TypeError("a read multiplies nothing")

    def bind(self, x: Tensor) -> Call:
        device = self.memory.device
        kernel = function(build(self.overlap), device)
        first = self.memory.data_ptr()
        arguments = Arguments(first, self.nbytes // _WIDTH, first, 0)
        grid = min(_BLOCKS * device_of(device).sms, -(-self.nbytes // _WIDTH))
        return lambda: kernel.launch(
            (grid, 1, 1), _THREADS, 0, current_stream(device), arguments, self.overlap
        )
