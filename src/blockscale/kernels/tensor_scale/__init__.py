"""Tensor scales derived from the data, one per matrix or one per row.

No weights. Launches are called with (x, out):

x    [groups, n, k]; the problem's m is groups * n, its w the kind that x will be quantised to
out  float32: [groups] where the problem's rule is "matrix", [groups, n] where it is "row"
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.tensor_scale import cpu, cuda, reference

KERNELS: tuple[Kernel, ...] = (cpu, cuda, reference)
