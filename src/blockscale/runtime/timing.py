"""How a time is taken, for choosing between kernels on this machine.

A product is mostly a read of its weights, so a time means something only if they come from memory,
as in a model, whose other layers pass through the caches between two uses of one of them. Calls
therefore go round a ring of copies that is larger than the caches: see `ring_bytes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

import torch

from blockscale.runtime.memory import available_memory

Call = Callable[[], object]

_CPU_RING_BYTES = 512 << 20  # more than last-level caches hold, but for the very largest
_L2_CACHES = 3  # of a GPU, in a ring
_SAMPLE_SECONDS = 0.004  # on a CPU: a sample of short calls is as many of them as fill this


class Stopwatch(Protocol):
    """Of one way to do some work."""

    def sample(self) -> float:
        """Seconds per call."""


class CpuStopwatch:
    """Wall time of consecutive calls round the ring."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._ring = cycle(calls)
        self._count = 1
        self.sample()  # what only first calls do
        self._count = max(1, round(_SAMPLE_SECONDS / max(self.sample(), 1e-9)))

    def sample(self) -> float:
        next(self._ring)()  # untimed: it wakes the threads
        begin = time.perf_counter()
        for _ in range(self._count):
            next(self._ring)()
        return (time.perf_counter() - begin) / self._count


def ring_bytes(device: torch.device) -> int:
    """Of distinct weights, so that none is in a cache when it is used again.

    At most a quarter of the memory that is free, however small that makes the ring.
    """
    if device.type == "cuda":
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        return int(min(_L2_CACHES * cache, torch.cuda.mem_get_info(device)[0] // 4))
    return min(_CPU_RING_BYTES, available_memory() // 4)
