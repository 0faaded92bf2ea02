"""CUDA for many rows on Blackwell's data-centre GPUs: weights are decoded into TMEM and multiplied
by tcgen05.

One mainloop, cuda/gemm/mixed.cuh, for every format and verb, specialised by the Config. It reads
the layout that the stream kernel reads. It sums in float32 in a fixed order, as the tensor cores
do: the same call gives the same bits.
"""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels.contract import Launch, Parts
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul.fragments.tiled import too_few_rows, why_not_tiled
from blockscale.kernels.matmul.sm100_mixed_gemm.choice import gemm_configs
from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.kernels.matmul.sm100_mixed_gemm.product import Product
from blockscale.layouts import Layout
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "sm100_mixed_gemm"


def reads(format: Format, device: Device) -> Layout | None:
    return fragments(format) if device.tcgen05 and cuda_refusal(device) is None else None


def refuses(problem: Problem) -> str | None:
    refusal = why_not_tiled(problem, "tcgen05", problem.device.tcgen05) or too_few_rows(problem)
    if refusal is None and not gemm_configs(problem):
        return f"needs more shared memory than {problem.target} has"
    return refusal


def configs(problem: Problem) -> tuple[Config, ...]:
    return gemm_configs(problem)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights, frozen)
