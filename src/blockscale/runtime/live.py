"""The facts of a device that is here."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from blockscale.runtime.device import Device
from blockscale.runtime.gpus import like


@lru_cache(maxsize=64)
def device_of(device: torch.device) -> Device:
    """The facts of a live device. Rates, which no driver tells, come from the table of GPUs."""
    if device.type == "cuda":
        return _live_gpu(device)
    if device.type == "cpu":
        return Device(
            name=cpu_name(),
            arch="cpu",
            live=True,
            cores=os.cpu_count() or 1,
            instruction_sets=_instruction_sets(),
        )
    return Device(name=device.type, arch=device.type, live=True)


def _live_gpu(device: torch.device) -> Device:
    facts = torch.cuda.get_device_properties(device)
    arch = f"sm_{facts.major}{facts.minor}"
    return replace(
        like(facts.name, arch),
        name=facts.name,
        arch=arch,
        live=True,
        sms=facts.multi_processor_count,
        shared_per_sm=facts.shared_memory_per_multiprocessor,
        shared_per_cta=facts.shared_memory_per_multiprocessor - 1024,  # which the system keeps
        l2_bytes=facts.L2_cache_size,
    )


_COUNTED = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
_COUNTED_ARM = ("asimd", "asimddp", "fphp", "bf16", "i8mm", "sve", "sve2")


def _instruction_sets() -> tuple[str, ...]:
    """As Linux lists them, of those that kernels care about."""
    listed = set(_cpu_lines("flags")[:1] or _cpu_lines("Features")[:1])
    flags = set(" ".join(listed).split())
    return tuple(each for each in (*_COUNTED, *_COUNTED_ARM) if each in flags)


def cpu_name() -> str:
    names = _cpu_lines("model name")
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


@lru_cache(maxsize=4)
def _cpu_lines(key: str) -> list[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith(key)]
