"""What this machine can do at best, measured: bytes read and multiply-adds, per second.

A floor is a problem's work divided by these. They are measured on the first question and kept for
the process; a quarter of a second on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

_REPEATS = 5


class Ceilings(NamedTuple):
    read_bytes_per_s: float
    flops_per_s: float


@lru_cache(maxsize=16)
def ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Best of a few: a sum over memory far larger than a cache, and a square product.

    The product is in `dtype` or in float32, whichever is faster: some CPUs only emulate the former.
    """
    on_gpu = device.type == "cuda"
    memory = torch.ones(2**30 // 4 if on_gpu else 2**27 // 4, dtype=torch.float32, device=device)
    side = 8192 if on_gpu else 512
    square = torch.randn(side, side, dtype=torch.float32, device=device)
    read = _best_seconds(lambda: memory.sum(), device, _REPEATS)
    product = _best_seconds(lambda: square @ square, device, _REPEATS)
    if dtype != torch.float32:
        short = square.to(dtype)
        strip = short[: side // 8]
        trial = 8 * _best_seconds(lambda: strip @ short, device, 2)  # the first call may set up
        if trial < 4 * product:  # else emulated, and not worth measuring well
            product = min(product, _best_seconds(lambda: short @ short, device, _REPEATS))
    return Ceilings(memory.nbytes / read, 2 * side**3 / product)


def _best_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)
