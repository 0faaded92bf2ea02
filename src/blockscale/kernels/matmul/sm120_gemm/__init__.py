"""CUDA for two quantised operands on Blackwell's GeForce and workstation GPUs: `mma.sync`
multiplies their codes and applies block scales.

One mainloop, cuda/gemm/warp_scaled.cuh, for every pair of formats and every verb, specialised by
the Config. It reads codes as files hold them and blocked scales. It sums in float32 in a fixed
order, as the tensor cores do: the same call gives the same bits.
"""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels.contract import Launch, Parts
from blockscale.kernels.matmul.block_scaled.operands import LAYOUT, operands_of, unreadable
from blockscale.kernels.matmul.sm120_gemm.choice import gemm_configs
from blockscale.kernels.matmul.sm120_gemm.config import Config
from blockscale.kernels.matmul.sm120_gemm.product import Product
from blockscale.layouts import Layout
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "sm120_gemm"


def reads(format: Format, device: Device) -> Layout | None:
    known = not isinstance(operands_of(format, format), str)
    return LAYOUT if known and device.block_scale_mma and cuda_refusal(device) is None else None


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device)
    if refusal is None and not problem.device.block_scale_mma:
        return f"multiplies by mma.sync with block scales, which {problem.target} has not"
    refusal = refusal or unreadable(problem)
    if refusal is None and not gemm_configs(problem):
        return f"needs more shared memory than {problem.target} has"
    return refusal


def configs(problem: Problem) -> tuple[Config, ...]:
    return gemm_configs(problem)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights)
