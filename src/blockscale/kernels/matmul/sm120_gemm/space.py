"""Every legal Config of the mma.sync GEMM for a problem: what can run, with no word of speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blockscale.kernels.matmul.sm120_gemm.config import Config
from blockscale.kernels.matmul.sm120_gemm.shared_memory import shared_bytes
from blockscale.problem import Problem

_STAGES = (4, 3, 2)
_STATIC_SHARED = 1024  # bytes that the kernel has for itself, at the most


def every_config(problem: Problem) -> Iterator[Config]:
    for w_rows in (128,) if problem.gated else (64, 128):
        yield from _with_stages(problem, Config(w_rows, 0))


def _with_stages(problem: Problem, config: Config) -> Iterator[Config]:
    """As many as fit: fewer hide less latency."""
    for stages in _STAGES:
        config = replace(config, stages=stages)
        if shared_bytes(config, problem) + _STATIC_SHARED <= problem.device.shared_per_cta:
            yield config
            return
