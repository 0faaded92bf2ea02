"""How much memory this machine has to give."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that can be used without swapping; all there are where the system does not say."""
    info = Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        field, _, value = line.partition(":")
        if field == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
