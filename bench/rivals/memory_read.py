"""The ceiling: a plain read of as many bytes as the bfloat16 weight has, by all threads.

No way of reading is the fastest everywhere, so several take part and the fastest is the ceiling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.rivals.contract import Prepared, Rival
from bench.timing import Call


def _square(memory: Tensor) -> Tensor:
    values = memory.view(torch.float32)
    return values.dot(values)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {  # all of memory: int64 [bytes // 8]
    "sum": lambda memory: memory.sum(),
    "max": lambda memory: memory.view(torch.int32).amax(),
    "dot": _square,
}


@dataclass(frozen=True)
class MemoryRead(Rival):
    way: str
    role: str = "ceiling"

    @property
    def name(self) -> str:
        return f"read of memory ({self.way})"

    def prepare(self, w: Tensor) -> Memory:
        return Memory(w.flatten().view(torch.int64).clone(), self.way)


@dataclass(frozen=True)
class Memory(Prepared):
    memory: Tensor
    way: str

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def copy(self) -> Memory:
        return Memory(self.memory.clone(), self.way)

    def decoded(self) -> Tensor:
        raise TypeError("a read multiplies nothing")

    def bind(self, x: Tensor) -> Call:
        read = WAYS[self.way]
        return lambda: read(self.memory)
