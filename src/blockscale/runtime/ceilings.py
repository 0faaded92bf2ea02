"""What a machine can do at best: bytes read and multiply-adds, per second.

A floor is a problem's work divided by these. On this machine they are measured, on the first
question, and kept for the process: a quarter of a second on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.runtime.device import Device
from blockscale.runtime.native_library import load_native

_REPEATS = 5
# Multiply-adds of int8 for each of float32 that an instruction makes, where torch's own product of
# int8 does without it.
_INT8_GAINS = {"dotprod": 4, "i8mm": 8, "bf16": 8}


class Ceilings(NamedTuple):
    read_bytes_per_s: float
    flops_per_s: float
    source: str = "both measured here"


def published_ceilings(device: Device) -> Ceilings:
    """Of a GPU that is not here."""
    flops = device.sms * device.sm_hz * device.mma_flops_per_cycle
    return Ceilings(device.dram_bytes_per_s, flops, f"{device.name} by its data sheet")


@lru_cache(maxsize=16)
def ceilings(device: torch.device, *dtypes: torch.dtype) -> Ceilings:
    """Best of a few: a sum over memory far larger than a cache, and a square product.

    The product is in one of `dtypes` or in float32, whichever is fastest: some CPUs only emulate
    the others. int8 sums in int32, by VNNI, AMX or tensor cores where a machine has them; on ARM,
    by the instructions that the CPU has.
    """
    on_gpu = device.type == "cuda"
    memory = torch.ones(2**30 // 4 if on_gpu else 2**27 // 4, dtype=torch.float32, device=device)
    side = 8192 if on_gpu else 512
    square = torch.randn(side, side, dtype=torch.float32, device=device)
    read = _best_seconds(lambda: memory.sum(), device, _REPEATS)
    product = in_float32 = _best_seconds(lambda: square @ square, device, _REPEATS)
    for dtype in dtypes:
        if dtype != torch.float32:
            product = min(product, _product_seconds(square.to(dtype), product))
    found = Ceilings(memory.nbytes / read, 2 * side**3 / product)
    isa, gain = _int8_gain(device) if torch.int8 in dtypes else ("", 1)
    if in_float32 / gain < product:
        by_isa = f"measured here, and {gain} times float32's flop/s by {isa}"
        return found._replace(flops_per_s=2 * side**3 * gain / in_float32, source=by_isa)
    return found


def _int8_gain(device: torch.device) -> tuple[str, int]:
    native = load_native()
    if device.type != "cpu" or isinstance(native, str):
        return "", 1
    return native.isa, _INT8_GAINS.get(native.isa, 1)


def _product_seconds(square: Tensor, known: float) -> float:
    """Of a square with itself, or about that where it takes far longer than what is known."""
    multiply = torch._int_mm if square.dtype == torch.int8 else torch.matmul
    strip = square[: len(square) // 8]
    # The first call may set up.
    trial = 8 * _best_seconds(lambda: multiply(strip, square), square.device, 2)
    if trial >= 4 * known:  # emulated, and not worth measuring well
        return trial
    return _best_seconds(lambda: multiply(square, square), square.device, _REPEATS)


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
