"""GPUs by name, with the facts that kernels are chosen by: for one that is not here, and for rates
that no driver tells.

Sources. SMs, clocks, bandwidth and dense 16-bit tensor rates: NVIDIA's data sheets and architecture
papers (A100, Ada, H100, H200, Blackwell, RTX Blackwell). Shared memory: the table of compute
capabilities in the CUDA programming guide; one KiB of an SM's share is the system's for each CTA.
The clocks of H200 and H100 are those that they were seen to hold under these kernels, and the L2 of
the H200 is what its driver tells, more than the data sheet's 50 MB: what is explained without a GPU
is to be what runs on one. Of B300 and GB10, marked below, some are not published: they are those of
the nearest sibling.
"""

from __future__ import annotations

import re
from dataclasses import replace

from blockscale.runtime.device import Device

_KIB, _MIB, _GB = 1 << 10, 1 << 20, 1e9


def _gpu(
    name: str, arch: str, sms: int, mhz: int, shared_kib: int, l2_mib: int, gb_s: float, tflops: int
) -> Device:
    """shared_kib: of an SM. tflops: dense bfloat16 with sums in float32, at the boost clock."""
    per_cycle = round(tflops * 1e12 / (sms * mhz * 1e6) / 512) * 512
    return Device(
        name=name,
        arch=arch,
        sms=sms,
        sm_hz=mhz * 1e6,
        shared_per_sm=shared_kib * _KIB,
        shared_per_cta=(shared_kib - 1) * _KIB,
        l2_bytes=l2_mib * _MIB,
        dram_bytes_per_s=gb_s * _GB,
        mma_flops_per_cycle=per_cycle,
    )


GPUS: dict[str, Device] = {
    "a100": _gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1410, 164, 40, 2039, 312),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", "sm_86", 82, 1695, 100, 6, 936, 71),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 2520, 100, 72, 1008, 165),
    "l40s": _gpu("NVIDIA L40S", "sm_89", 142, 2520, 100, 96, 864, 362),
    "h100": _gpu("NVIDIA H100 80GB HBM3", "sm_90", 132, 1830, 228, 50, 3352, 989),
    "h200": _gpu("NVIDIA H200", "sm_90", 132, 1830, 228, 60, 4800, 989),
    "b200": _gpu("NVIDIA B200", "sm_100", 148, 1860, 228, 126, 7700, 2250),
    "b300": _gpu("NVIDIA B300", "sm_103", 148, 1860, 228, 126, 8000, 2250),  # SMs, L2: B200's
    "gb10": _gpu("NVIDIA GB10", "sm_121", 48, 2418, 100, 24, 273, 62),  # clock, L2, rate: guessed
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", "sm_120", 170, 2407, 100, 96, 1792, 209),
    "rtxpro6000": _gpu("NVIDIA RTX PRO 6000 Blackwell", "sm_120", 188, 2617, 100, 128, 1792, 252),
}

# What stands for an architecture where a GPU of it is not named, and for compiling without one.
_REPRESENTATIVES = {
    "sm_80": "a100",
    "sm_86": "rtx3090",
    "sm_89": "rtx4090",
    "sm_90": "h200",
    "sm_100": "b200",
    "sm_103": "b300",
    "sm_120": "rtx5090",
    "sm_121": "gb10",
}


def gpu(name: str) -> Device:
    """By its short name, or by an architecture's: "h200", "sm_90", "sm_90a"."""
    lower = name.lower()
    if re.fullmatch(r"sm_\d+[af]?", lower):
        return of_arch(lower.rstrip("af"))
    found = GPUS.get(re.sub(r"[ _-]", "", lower))
    if found is None:
        raise ValueError(f"no GPU {name!r} is known; there are {', '.join(GPUS)}")
    return found


def of_arch(arch: str) -> Device:
    """What stands for an architecture; for one that is not listed, the nearest older sibling."""
    if arch in _REPRESENTATIVES:
        return GPUS[_REPRESENTATIVES[arch]]
    asked = Device(name=arch, arch=arch)
    older = [
        each
        for each in (GPUS[name] for name in _REPRESENTATIVES.values())
        if each.capability[0] == asked.capability[0] and each.capability < asked.capability
    ]
    return replace(older[-1], name=arch, arch=arch) if older else asked


def like(name: str, arch: str) -> Device:
    """The entry for what a driver calls `name`, or the one that stands for its architecture."""
    named = (each for each in GPUS.values() if each.arch == arch and _is_called(each.name, name))
    return next(named, of_arch(arch))


def _is_called(known: str, name: str) -> bool:
    """Drivers add memory sizes and form factors: "NVIDIA H100 PCIe", "NVIDIA A100 80GB PCIe"."""
    model = known.removeprefix("NVIDIA ").split("-")[0].split(" 80GB")[0]
    return model in name
