"""Which Configs of cuda/kernels/sm100_mixed_gemm.cu suit a problem: all legal ones, by predicted
time."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.kernels.matmul.sm100_mixed_gemm.cost import cost
from blockscale.kernels.matmul.sm100_mixed_gemm.space import every_config
from blockscale.problem import Problem


@lru_cache(maxsize=4096)
def gemm_configs(problem: Problem) -> tuple[Config, ...]:
    return tuple(sorted(every_config(problem), key=lambda each: cost(problem, each).microseconds))
