"""Codes and scales into another layout, bit for bit the same tensor.

The problem's x is the kind that there is and w the kind that it becomes; m is the rows of each of
`groups` matrices. No weights. Launches are called with (codes, scale) of [groups, m, ...] and give
both back: what both layouts place alike may be the same tensor.
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.repack import cpu, cuda, reference

KERNELS: tuple[Kernel, ...] = (cpu, cuda, reference)
