"""Which Configs of cuda/kernels/sm90_gemm.cu suit a problem: all legal ones, by predicted time."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.cost import cost
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.problem import Problem


@lru_cache(maxsize=4096)
def gemm_configs(problem: Problem, transposed: bool = False) -> tuple[Config, ...]:
    found = every_config(problem, transposed)
    return tuple(sorted(found, key=lambda each: cost(problem, each).microseconds))
