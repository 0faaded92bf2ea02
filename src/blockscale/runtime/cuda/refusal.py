"""Why CUDA kernels cannot run on a device, whatever the work."""

from __future__ import annotations

from functools import lru_cache

import torch

from blockscale.runtime.cuda.arch import OLDEST, arch_of, capability
from blockscale.runtime.cuda.nvrtc import load_nvrtc
from blockscale.runtime.device import Device
from blockscale.runtime.environment import cuda_enabled


@lru_cache(maxsize=64)
def cuda_refusal(device: Device) -> str | None:
    """Of a GPU that is not here only what holds on any machine: a problem can be explained for it
    where there is neither a GPU nor a compiler."""
    target = device.arch
    if not device.is_gpu:
        return f"runs on NVIDIA GPUs; this is {target}"
    if device.capability < OLDEST:
        return f"{target} is older than sm_{OLDEST[0]}{OLDEST[1]}"
    return _missing(target) if device.live else None


def _missing(target: str) -> str | None:
    """What kernels need on this machine and is not there."""
    if not cuda_enabled():
        return "BLOCKSCALE_CUDA=0 turns it off"
    if torch.version.hip is not None:
        return f"this torch is built for ROCm {torch.version.hip}, not for CUDA"
    nvrtc = load_nvrtc()
    if isinstance(nvrtc, str):
        return nvrtc
    major, minor = capability(arch_of(target))
    if 10 * major + minor not in nvrtc.architectures:
        return f"NVRTC {nvrtc.version} does not know {target}: a newer torch brings a newer one"
    return None
