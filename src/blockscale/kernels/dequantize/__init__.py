"""Codes and scales to plain tensors.

Weights: one Parts. Launches are called with (out).

parts  Parts of [groups, n, k], with one tensor scale per row: float32 [groups, n] or None;
       the problem's m is groups * n
out    [groups, n, k]
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.dequantize import cpu, cuda, cuda_fragments, reference

KERNELS: tuple[Kernel, ...] = (cpu, cuda, cuda_fragments, reference)
