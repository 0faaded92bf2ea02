"""What kernels are shaped by: multiprocessors and shared memory of a target."""

from __future__ import annotations

from functools import lru_cache

import torch

from blockscale.runtime.cuda.arch import capability
from blockscale.runtime.target import target_of

# Of the largest chip of its kind, for compiling where no such GPU is.
_PROCESSORS = {(8, 0): 108, (8, 6): 84, (8, 9): 128, (9, 0): 132, (10, 0): 148, (12, 0): 170}
_SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}  # of a block
_LEAST_SHARED_KIB = 99


@lru_cache(maxsize=16)
def multiprocessors(target: str) -> int:
    if torch.cuda.is_available() and target_of(torch.device("cuda", 0)) == target:
        return torch.cuda.get_device_properties(0).multi_processor_count
    return _PROCESSORS.get(capability(target), 132)


@lru_cache(maxsize=16)
def shared_limit(target: str) -> int:
    """Bytes of shared memory that one block may have."""
    return 1024 * _SHARED_KIB.get(capability(target), _LEAST_SHARED_KIB)


def can_overlap(target: str) -> bool:
    """Whether a kernel may start before the one ahead of it ends."""
    return capability(target) >= (9, 0)


def can_cluster(target: str) -> bool:
    """Whether blocks of a cluster read each other's shared memory: Hopper, large Blackwell."""
    return (9, 0) <= capability(target) < (12, 0)


def has_wgmma(target: str) -> bool:
    """Whether four warps multiply together: Hopper alone."""
    return capability(target) == (9, 0)
