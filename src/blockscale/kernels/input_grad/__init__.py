"""The gradient of a product with respect to x: grad @ w, so that adapters train on frozen weights.

Weights: one Parts of [groups, n, k]. Launches are called with (grad, group_sizes, out):

grad         [rows, n]
group_sizes  as in matmul
out          [rows, k]
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.input_grad import cpu, cublas, reference

KERNELS: tuple[Kernel, ...] = (cpu, cublas, reference)
