"""Why CUDA kernels cannot be built for a target, whatever the work."""

from __future__ import annotations

from functools import lru_cache

import torch

from blockscale.runtime.cuda.arch import OLDEST, arch_of, capability
from blockscale.runtime.cuda.nvrtc import load_nvrtc
from blockscale.runtime.environment import cuda_enabled


@lru_cache(maxsize=64)
def cuda_refusal(target: str) -> str | None:
    """Asks for a compiler but for no GPU, so that kernels can be built where there is none."""
    if not target.startswith("sm_"):
        return f"no CUDA device: target is {target}"
    if not cuda_enabled():
        return "BLOCKSCALE_CUDA=0 turns it off"
    if torch.version.hip is not None:
        return f"this torch is built for ROCm {torch.version.hip}, not for CUDA"
    if capability(target) < OLDEST:
        return f"{target} is older than sm_{OLDEST[0]}{OLDEST[1]}"
    nvrtc = load_nvrtc()
    if isinstance(nvrtc, str):
        return nvrtc
    major, minor = capability(arch_of(target))
    if 10 * major + minor not in nvrtc.architectures:
        return f"NVRTC {nvrtc.version} does not know {target}: a newer torch brings a newer one"
    return None
