"""Which Configs of cuda/kernels/sm90_gemm.cu suit a problem: all legal ones, by predicted time."""

from __future__ import annotations

from functools import lru_cache

from blockscale.kernels.contract import Prediction
from blockscale.kernels.matmul.sm90_gemm.config import Config
from blockscale.kernels.matmul.sm90_gemm.correction import correction
from blockscale.kernels.matmul.sm90_gemm.cost import cost
from blockscale.kernels.matmul.sm90_gemm.space import every_config
from blockscale.problem import Problem


@lru_cache(maxsize=4096)
def gemm_configs(problem: Problem, transposed: bool = False) -> tuple[Config, ...]:
    found = every_config(problem, transposed)
    return tuple(sorted(found, key=lambda each: predicted(problem, each).microseconds))


def predicted(problem: Problem, config: Config) -> Prediction:
    """How long a config should take: what is counted, and what that was seen to miss."""
    counted = cost(problem, config)
    factor = correction(problem, config, counted.microseconds)
    return counted._replace(microseconds=counted.microseconds * factor)
