"""Which machine a tensor lives on, as the facts that choose a kernel."""

from __future__ import annotations

import os
from functools import lru_cache

import torch

from blockscale.runtime.live import cpu_name


@lru_cache(maxsize=64)
def target_of(device: torch.device) -> str:
    """ "cpu", "sm_90", or the device type of something the library has no kernels for."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    return device.type


def resolve_device(device: torch.device | str) -> torch.device:
    """A device with its index, or an error that says why it cannot be used."""
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r}: use cpu, cuda, or one GPU such as cuda:1") from None
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"device {device!r}: torch {torch.__version__} sees no CUDA device")
        if ":" not in str(resolved):
            return torch.device("cuda", torch.cuda.current_device())
        if resolved.index >= torch.cuda.device_count():
            raise RuntimeError(
                f"device {device}: there are {torch.cuda.device_count()} CUDA devices"
            )
    return resolved


def emulates_bfloat16(device: torch.device | str) -> bool:
    """Whether 16-bit products are slower than float32: CPUs without instructions for them."""
    if torch.device(device).type != "cpu":
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def devices() -> list[torch.device]:
    """The CPU, then each GPU. Asking counts GPUs; it does not initialise CUDA."""
    return [torch.device("cpu")] + [
        torch.device("cuda", i) for i in range(torch.cuda.device_count())
    ]


def describe_device(device: torch.device) -> str:
    if device.type != "cuda":
        threads = torch.get_num_threads()
        return f"{cpu_name()}, {threads} of {os.cpu_count()} threads"
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.multi_processor_count} SMs, {facts.total_memory / 2**30:.0f} GiB"
