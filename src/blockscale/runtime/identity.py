"""The machine that a measurement belongs to, by name."""

from __future__ import annotations

from functools import lru_cache

import torch

from blockscale.runtime.native_library import load_native
from blockscale.runtime.target import describe_device, devices, target_of


def device_names(target: str) -> list[str]:
    """What the devices of a target are called, each name once.

    One name, as a rule. None where there is no such device; two where unlike GPUs have the same
    target, which a measurement cannot tell apart then. Of a CPU, the threads and the instruction
    set that are used belong to the name.
    """
    return [_cpu_name()] if target == "cpu" else list(_gpu_names(target))


def _cpu_name() -> str:
    native = load_native()
    isa = "no native library" if isinstance(native, str) else native.isa
    return f"{describe_device(torch.device('cpu'))}, {isa}"


@lru_cache(maxsize=16)
def _gpu_names(target: str) -> tuple[str, ...]:
    alike = [each for each in devices() if each.type == "cuda" and target_of(each) == target]
    return tuple(dict.fromkeys(map(describe_device, alike)))
