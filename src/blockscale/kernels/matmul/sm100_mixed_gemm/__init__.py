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
from blockscale.kernels.matmul.fragments.groups import rows_each
from blockscale.kernels.matmul.fragments.numbers import scales_weights, unreadable, x_dtype
from blockscale.kernels.matmul.sm100_mixed_gemm.choice import gemm_configs
from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.kernels.matmul.sm100_mixed_gemm.product import Product
from blockscale.kernels.matmul.sm100_mixed_gemm.space import ROWS
from blockscale.layouts import Layout
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "sm100_mixed_gemm"

# Rows of x of a matrix, on average: with fewer, half a tile would be idle, and the stream kernel
# reads weights as fast as memory gives them.
_FEWEST_ROWS = 33
_FEWEST_OF_GROUP = 4


def reads(format: Format, device: Device) -> Layout | None:
    return fragments(format) if device.tcgen05 and cuda_refusal(device) is None else None


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device)
    if refusal is None and not problem.device.tcgen05:
        return f"multiplies by tcgen05, which {problem.target} has not"
    refusal = refusal or unreadable(problem)
    if refusal is not None:
        return refusal
    fewest, rows = (_FEWEST_OF_GROUP if problem.ragged else _FEWEST_ROWS), rows_each(problem)
    if rows < fewest:
        return f"is for {fewest} rows of a matrix and more, not {rows:.3g}"
    if not scales_weights(problem.w_kind.format, x_dtype(problem), ROWS[0]):
        return f"scales weights in x's dtype, and {x_dtype(problem)} does not hold them exactly"
    if not gemm_configs(problem):
        return f"needs more shared memory than {problem.target} has"
    return None


def configs(problem: Problem) -> tuple[Config, ...]:
    return gemm_configs(problem)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights, frozen)
