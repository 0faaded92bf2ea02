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
from blockscale.kernels.matmul.fragments.numbers import scales_weights, unreadable
from blockscale.kernels.matmul.sm90_gemm.choice import gemm_configs
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.product import Product
from blockscale.kernels.matmul.sm90_gemm.space import ROWS
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
    refusal = cuda_refusal(problem.device)
    if refusal is None and not problem.device.wgmma:
        return f"multiplies by wgmma, which {problem.target} has not"
    refusal = refusal or unreadable(problem)
    if refusal is not None:
        return refusal
    if not problem.n or problem.n % _TMA_NUMBERS:
        return f"has TMA copy rows of {_TMA_NUMBERS} numbers times any, not of {problem.n}"
    if not scales_weights(problem.w_kind.format, problem.x, ROWS[0]):
        return f"scales weights in {problem.x}, which does not hold them exactly"
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
