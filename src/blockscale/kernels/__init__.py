"""Kernels: one folder per verb, one file or folder per rival implementation.

Only `ops` imports this package. To add a kernel, write a module with the four functions of
`contract` and put it in its folder's KERNELS, before every kernel it is faster than. It then has
every test of correctness, compile tests for its targets, tuning, `explain` and the benchmarks.
"""

from blockscale.kernels import dequantize, input_grad, matmul, quantize, repack, tensor_scale
from blockscale.kernels.contract import Config, FunctionLaunch, Kernel, Launch, Parts, Prediction

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "matmul": matmul.KERNELS,
    "gated_matmul": matmul.KERNELS,
    "grouped_matmul": matmul.KERNELS,
    "grouped_gated_matmul": matmul.KERNELS,
    "input_grad": input_grad.KERNELS,
    "quantize": quantize.KERNELS,
    "dequantize": dequantize.KERNELS,
    "repack": repack.KERNELS,
    "tensor_scale": tensor_scale.KERNELS,
}

__all__ = ["KERNELS", "Config", "FunctionLaunch", "Kernel", "Launch", "Parts", "Prediction"]
