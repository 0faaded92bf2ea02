"""The threads that native code works on: torch's own, where they can be had.

Torch's wheels do their work on the threads of an OpenMP runtime, which spin for a while after each
piece of it. Threads beside them wait for these cores, and torch's for theirs: with 16 threads, a
model of four bits was slower than one of sixteen. So the native library enters torch's runtime
(csrc/runtime/openmp.h) and has threads of its own only where that cannot be.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from math import ceil
from pathlib import Path

import torch

from blockscale.runtime.native import OpenMp

_FUNCTIONS = (
    "GOMP_parallel",
    "omp_get_thread_num",
    "omp_get_max_threads",
    "omp_get_num_procs",
    "omp_in_parallel",
    "omp_pause_resource_all",
)
_CGROUPS = Path("/sys/fs/cgroup")


def share_torch_threads(library: ctypes.CDLL) -> str:
    """Let native code use torch's threads; which threads it uses, for people."""
    found = _find_openmp()
    if isinstance(found, str):
        return f"threads of its own: {found}"
    if not library.bs_share_openmp(ctypes.byref(found)):
        return "threads of its own: a product was running when the library was loaded"
    return "torch's OpenMP threads"


@lru_cache(maxsize=1)
def _find_openmp() -> OpenMp | str:
    """The functions of the runtime that torch's own calls go to, or why there are none."""
    if sys.platform != "linux":
        return f"torch's cannot be entered on {sys.platform}"
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return "torch does not use OpenMP"
    path = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:
        # A handle of what is loaded finds symbols in what it is linked to as well. Before those
        # the loader binds torch's calls to what the whole process has: to a runtime of LD_PRELOAD,
        # which engines recommend for CPUs.
        torchs = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        everyones = ctypes.CDLL(None)
        bound = everyones if hasattr(everyones, _FUNCTIONS[0]) else torchs
        functions = [getattr(bound, name) for name in _FUNCTIONS]
    except (OSError, AttributeError) as error:
        return f"torch's OpenMP was not found: {error}"
    return OpenMp(*(ctypes.cast(each, ctypes.c_void_p).value for each in functions))


def usable_threads() -> int:
    """As many as torch uses at this time, or as the container may keep busy, if that is fewer."""
    threads = torch.get_num_threads()
    limit = _container_limit()
    return threads if limit is None else min(threads, limit)


@lru_cache(maxsize=1)
def _container_limit() -> int | None:
    """Cores' worth of time that the control groups of this process allow, rounded up."""
    quotas = [quota for quota in map(_quota, _own_cgroups()) if quota is not None]
    return max(1, ceil(min(quotas))) if quotas else None


def _own_cgroups() -> list[Path]:
    """Where limits of this process may stand: its group and those around it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            folder = _CGROUPS / controllers / path.strip("/")
            folders += [folder, *folder.parents]
    return [folder for folder in folders if folder.is_relative_to(_CGROUPS)]


def _quota(folder: Path) -> float | None:
    """In cores, by version 2 of control groups or by version 1; None where nothing limits it."""
    try:
        if (two := folder / "cpu.max").exists():
            quota, period = two.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
