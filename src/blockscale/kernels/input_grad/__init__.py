"""The gradient of a product with respect to x: grad @ w, so that adapters train on frozen weights.

Weights: one Parts of [groups, n, k]. Launches are called as a product's are, with (grad, biases,
group_sizes, out):

grad         [rows, n]
biases       (None,)
group_sizes  as in matmul
out          [rows, k]
"""

from blockscale.kernels.contract import Kernel
from blockscale.kernels.input_grad import cpu, cublas, reference, sm90_gemm

KERNELS: tuple[Kernel, ...] = (cpu, sm90_gemm, cublas, reference)
