"""What a measurement was made with, beside the sources of the kernels."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch

from blockscale.runtime.cuda import driver_version, load_nvrtc


def versions(target: str) -> dict[str, str]:
    try:
        ours = version("blockscale")
    except PackageNotFoundError:  # run from its sources
        ours = "not installed"
    found = {"blockscale": ours, "torch": str(torch.__version__)}
    if target != "cpu":
        nvrtc = load_nvrtc()
        found["driver"] = f"CUDA {driver_version()}"
        found["NVRTC"] = nvrtc if isinstance(nvrtc, str) else nvrtc.version
    return found
