"""How much memory this machine and its GPUs have to give."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def available_memory(device: torch.device | None = None) -> int:
    """Bytes of the machine that can be used without swapping; all there are where it does not say.

    Of a GPU, those that no process has.
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        field, _, value = line.partition(":")
        if field == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
