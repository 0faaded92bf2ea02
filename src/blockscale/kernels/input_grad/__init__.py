"""The gradient of a product with respect to x: grad @ w, so that adapters train on frozen weights.

launch(problem, config, grad, weight, group_sizes, out)

grad         [rows, n]
weight       Parts of [groups, n, k]
group_sizes  as in matmul
out          [rows, k]
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.input_grad import cpu, reference

KERNELS: tuple[Kernel, ...] = (cpu, reference)
