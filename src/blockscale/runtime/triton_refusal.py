"""Why Triton kernels cannot run on a device, whatever the work. Triton itself is not imported: that
takes a second, and happens when a product first needs it."""

from __future__ import annotations

import re
import shutil
import sysconfig
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from blockscale.runtime.cuda.arch import OLDEST
from blockscale.runtime.device import Device
from blockscale.runtime.environment import compiler_override, cuda_enabled

_OLDEST_TRITON = (3, 6)


@lru_cache(maxsize=64)
def triton_refusal(device: Device) -> str | None:
    """Of a GPU that is not here only what holds on any machine."""
    if not device.is_gpu:
        return f"runs on NVIDIA GPUs; this is {device.arch}"
    if device.capability < OLDEST:
        return f"{device.arch} is older than sm_{OLDEST[0]}{OLDEST[1]}"
    return _missing() if device.live else None


def _missing() -> str | None:
    """What Triton kernels need on this machine and is not there."""
    if not cuda_enabled():
        return "BLOCKSCALE_CUDA=0 turns it off"
    if torch.version.hip is not None:
        return f"this torch is built for ROCm {torch.version.hip}, not for CUDA"
    return _missing_triton() or _missing_compiler()


def _missing_triton() -> str | None:
    wanted = ".".join(map(str, _OLDEST_TRITON))
    try:
        found = version("triton")
    except PackageNotFoundError:
        return f"needs Triton, which is not installed: pip install 'triton>={wanted}'"
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or tuple(map(int, numbers.groups())) < _OLDEST_TRITON:
        return f"needs Triton {wanted} or newer, and {found} is installed"
    return None


def _missing_compiler() -> str | None:
    """Triton compiles a small C file for each kernel, which launches it from Python."""
    if not (compiler_override() or shutil.which("gcc") or shutil.which("clang")):
        return "Triton launches kernels by way of a C compiler, and there is neither gcc nor clang"
    scheme = sysconfig.get_default_scheme()  # Debian's "posix_local" holds no headers
    prefix = "posix_prefix" if scheme == "posix_local" else scheme
    headers = Path(sysconfig.get_path("include", prefix))
    if not (headers / "Python.h").is_file():
        return f"Triton launches kernels by way of Python's C headers, and {headers} has none"
    return None
