"""Kernels: one folder per kind of work, one file per rival implementation.

Only `ops` imports this package. To add a kernel, write a module with the three functions of
`contract` and put it in its folder's KERNELS, before every kernel it is faster than.
"""

from blockscale.kernels import dequantize, input_grad, matmul, quantize
from blockscale.kernels.amax import row_amax
from blockscale.kernels.contract import Kernel, Parts

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "matmul": matmul.KERNELS,
    "gated_matmul": matmul.KERNELS,
    "grouped_matmul": matmul.KERNELS,
    "grouped_gated_matmul": matmul.KERNELS,
    "input_grad": input_grad.KERNELS,
    "quantize": quantize.KERNELS,
    "dequantize": dequantize.KERNELS,
}

__all__ = ["KERNELS", "Kernel", "Parts", "row_amax"]
