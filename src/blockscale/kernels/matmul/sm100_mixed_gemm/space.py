"""Every legal Config of the mixed-input GEMM for a problem: what can run, with no word of speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blockscale.kernels.matmul.fragments.tiled import TILE_M
from blockscale.kernels.matmul.sm100_mixed_gemm.config import Config
from blockscale.kernels.matmul.sm100_mixed_gemm.shared_memory import shared_bytes
from blockscale.problem import Problem

_STAGES = range(8, 1, -1)
_STATIC_SHARED = 2048  # bytes that the kernel has for itself, at the most


def every_config(problem: Problem) -> Iterator[Config]:
    for rows in TILE_M:
        for ctas in (1, 2):
            yield from _with_stages(problem, Config(rows, ctas, 0))


def _with_stages(problem: Problem, config: Config) -> Iterator[Config]:
    """As many as fit: fewer hide less latency."""
    for stages in _STAGES:
        config = replace(config, stages=stages)
        if shared_bytes(config, problem) + _STATIC_SHARED <= problem.device.shared_per_cta:
            yield config
            return
