"""CUDA for few rows: every weight is read once, decoded and multiplied on the way.

One mainloop, cuda/kernels/stream.cu, for every format, verb and number of rows, specialised by the
Config. It sums in float32 in a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

from blockscale.formats import Format
from blockscale.kernels.contract import Launch, Parts
from blockscale.kernels.cuda.layout import fragments
from blockscale.kernels.cuda.rows import MOST_MATRICES
from blockscale.kernels.matmul.fragments.groups import matrices
from blockscale.kernels.matmul.fragments.numbers import unreadable
from blockscale.kernels.matmul.stream.choice import has_config, stream_configs
from blockscale.kernels.matmul.stream.config import Config
from blockscale.kernels.matmul.stream.facts import facts_of
from blockscale.kernels.matmul.stream.product import Product
from blockscale.layouts import Layout
from blockscale.problem import Problem
from blockscale.runtime import Device
from blockscale.runtime.cuda import cuda_refusal

__all__ = ["NAME", "bind", "configs", "reads", "refuses"]

NAME = "stream"

# Rows of x for a matrix, beyond which weights are decoded once for cuBLAS: by wgmma, and by
# mma. Which is faster around there has not been measured.
_MOST_ROWS_WGMMA, _MOST_ROWS = 256, 128


def reads(format: Format, device: Device) -> Layout | None:
    return fragments(format) if cuda_refusal(device) is None else None


def refuses(problem: Problem) -> str | None:
    refusal = cuda_refusal(problem.device) or unreadable(problem)
    if refusal is not None:
        return refusal
    if not 0 < matrices(problem) <= MOST_MATRICES:
        return f"takes 1 to {MOST_MATRICES} matrices, not {matrices(problem)}"
    most = _MOST_ROWS_WGMMA if facts_of(problem).takes_wgmma else _MOST_ROWS
    if not problem.ragged and problem.m > most:
        return f"is for up to {most} rows, not {problem.m}"
    if not has_config(problem):
        return f"needs more shared memory than {problem.target} has"
    return None


def configs(problem: Problem) -> tuple[Config, ...]:
    return stream_configs(problem)


def bind(
    problem: Problem, config: Config, weights: tuple[Parts, ...] = (), frozen: bool = False
) -> Launch:
    return Product(problem, config, weights, frozen)
