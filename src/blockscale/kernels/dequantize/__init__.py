"""Codes and scales to plain tensors.

launch(problem, config, parts, out)

parts  Parts of [groups, n, k], with one tensor scale per row: float32 [groups, n] or None;
       the problem's m is groups * n
out    [groups, n, k]
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.dequantize import cpu, cuda, cuda_fragments, reference

KERNELS: tuple[Kernel, ...] = (cpu, cuda, cuda_fragments, reference)
