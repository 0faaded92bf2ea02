"""The frozen facts of a device that kernels are chosen and shaped by.

They come from the live device (`live.device_of`) or by name from one table (`gpus.gpu`), so that a
choice is a pure function, which can be printed, tested and explained for a GPU that is not there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, kw_only=True, eq=False)
class Device:
    """Of a GPU everything below, of a CPU its cores and instruction sets, of others the name.

    arch                "sm_90", "cpu", or torch's type of a device that no kernel knows
    live                it is in this machine, so what kernels need here must be here too
    shared_per_cta      bytes of shared memory that one CTA may ask for
    dram_bytes_per_s    by the data sheet; a large read reaches about nine tenths of it
    mma_flops_per_cycle dense 16-bit products and sums of one SM, with sums in float32
    """

    name: str
    arch: str
    live: bool = False
    sms: int = 0
    sm_hz: float = 0.0
    shared_per_sm: int = 0
    shared_per_cta: int = 0
    registers_per_sm: int = 65536
    l2_bytes: int = 0
    dram_bytes_per_s: float = 0.0
    mma_flops_per_cycle: int = 0
    cores: int = 0
    instruction_sets: tuple[str, ...] = field(default=())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self is other or self._facts == other._facts)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _facts(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    @cached_property
    def _hash(self) -> int:
        """Computed once: a device is part of every problem, and problems are looked up."""
        return hash(self._facts)

    def __str__(self) -> str:
        return self.arch if self.name in ("", self.arch) else f"{self.name} ({self.arch})"

    @property
    def is_gpu(self) -> bool:
        return self.arch.startswith("sm_")

    @cached_property
    def capability(self) -> tuple[int, int]:
        """ "sm_90" -> (9, 0); (0, 0) of what is no NVIDIA GPU."""
        match = re.fullmatch(r"sm_(\d+)(\d)[af]?", self.arch)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def pdl(self) -> bool:
        """A kernel may start before the one ahead of it in the stream ends."""
        return self.capability >= (9, 0)

    @property
    def clusters(self) -> bool:
        """CTAs of a cluster read each other's shared memory. GPUs of GeForce's line have clusters
        too, untried here."""
        return (9, 0) <= self.capability < (12, 0)

    @property
    def wgmma(self) -> bool:
        return self.capability == (9, 0)

    @property
    def tcgen05(self) -> bool:
        return (10, 0) <= self.capability < (12, 0)

    @property
    def block_scaled(self) -> bool:
        """Tensor cores take block scales, by one instruction or another."""
        return self.capability >= (10, 0)

    @property
    def block_scale_mma(self) -> bool:
        """`mma.sync` takes block scales."""
        return self.capability[0] == 12

    @property
    def block_scaled_gain(self) -> int:
        """What block-scaled products gain over 16-bit ones beside the ratio of the sizes: GPUs of
        GeForce's line multiply 16-bit numbers with sums in float32 at half rate."""
        return 2 if self.block_scale_mma else 1
