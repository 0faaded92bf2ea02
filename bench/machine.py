"""Where and with what a run was made, and how much memory there is for it."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]

# What decides how fast low-bit products can be; the rest of a CPU's flags is left out.
_INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_vbmi",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
_CACHES = Path("/sys/devices/system/cpu")
_SIDE = 8192  # of the squares whose product is a GPU's arithmetic ceiling


def describe_machine(threads: int) -> dict[str, object]:
    """Of the CPU and its memory, as stored with every run."""
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "instruction_sets": _instruction_sets(),
        "last_level_cache_bytes": last_level_cache(),
        "memory_bytes": _meminfo("MemTotal"),
        "system": platform.system(),
    }


def describe_gpu() -> dict[str, object]:
    """Of the first GPU, with the rate of a large bfloat16 product on it."""
    import torch

    facts = torch.cuda.get_device_properties(0)
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    return {
        "gpu": facts.name,
        "driver": driver or "unknown",
        "multiprocessors": facts.multi_processor_count,
        "l2_bytes": facts.L2_cache_size,
        "gpu_memory_bytes": facts.total_memory,
        "product_flops_per_second": _product_flops(),
    }


def _product_flops() -> float:
    """Of torch's bfloat16 product of random squares: the median of a few."""
    import torch

    a, b = (torch.randn(_SIDE, _SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(12)]
    for event in events:
        event.record()
        a @ b
    torch.cuda.synchronize()
    pairs = list(itertools.pairwise(events))[1:]  # the first sets up
    return 2 * _SIDE**3 / median(begin.elapsed_time(end) / 1000 for begin, end in pairs)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(given: str = "") -> tuple[str, bool]:
    """The commit that is checked out, and whether the tree differs from it; "" outside git.

    given: what the caller says it is, of a copy of the tree without its history
    """
    head = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=normal")
    if given and not head.startswith(given):
        return given, False
    return head, bool(changes)


def last_level_cache() -> int:
    """Bytes of the outermost caches of all cores together; 0 where the system does not say."""
    sizes: dict[tuple[int, str], int] = {}  # one per cache, not per core that shares it
    for index in _CACHES.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            sizes[level, (index / "shared_cpu_list").read_text()] = _bytes(size)
        except (OSError, ValueError):
            continue
    outermost = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == outermost)


def available_memory() -> int:
    return _meminfo("MemAvailable")


def _bytes(size: str) -> int:
    """Of "32768K" or "32M"."""
    return int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)


def _meminfo(field: str) -> int:
    info = Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_name() -> str:
    """/proc/cpuinfo has no name on ARM; lscpu knows the cores by their number."""
    for line in [*_cpuinfo(), *_output("lscpu").splitlines()]:
        field, _, value = line.partition(":")
        if field.strip().lower() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _instruction_sets() -> list[str]:
    for line in _cpuinfo():
        field, _, value = line.partition(":")
        if field.strip() in ("flags", "Features"):
            return [name for name in _INSTRUCTION_SETS if name in value.split()]
    return []


def _cpuinfo() -> list[str]:
    info = Path("/proc/cpuinfo")
    return info.read_text().splitlines() if info.exists() else []


def _output(program: str, *arguments: str) -> str:
    """What a program prints; "" where it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    result = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""
