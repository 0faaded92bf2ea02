"""The Hopper GEMM of kernels/matmul/sm90_gemm with weights that are transposed in registers: one
launch, which reads the weights as products do and leaves no decoded copy of them.

That GEMM sums over k and writes n columns. Here sums run over the rows of w, and what comes out are
its columns: `as_product` names them so.
"""

from __future__ import annotations

from dataclasses import replace

from blockscale.formats import Format
from blockscale.kernels.contract import Launch, Parts
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.matmul.fragments.tiled import why_not_tiled
from blockscale.kernels.matmul.sm90_gemm.choice import gemm_configs
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.product import Product
from blockscale.layouts import Layout
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "sm90_gemm"

_TMA_NUMBERS = 8  # of 16 bits: rows of a gradient must begin at multiples of 16 bytes


def reads(format: Format, device: Device) -> Layout | None:
    return fragments(format) if device.wgmma and cuda_refusal(device) is None else None


def refuses(problem: Problem) -> str | None:
    refusal = why_not_tiled(problem, "wgmma", problem.device.wgmma)
    if refusal is not None:
        return refusal
    if not problem.n or problem.n % _TMA_NUMBERS:
        return f"has TMA copy rows of a multiple of {_TMA_NUMBERS} numbers, not of {problem.n}"
    if not configs(problem):
        return f"needs more shared memory than {problem.target} has"
    return None


def configs(problem: Problem) -> tuple[Config, ...]:
    return gemm_configs(as_product(problem), transposed=True)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(as_product(problem), config, weights, frozen)


def as_product(problem: Problem) -> Problem:
    """What that GEMM is asked for."""
    return replace(problem, verb="matmul", n=problem.k, k=problem.n)
