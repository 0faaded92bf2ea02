"""Every legal Config of the Blackwell GEMM for a problem: what can run, with no word of speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blockscale.kernels.matmul.sm100_gemm.config import Config
from blockscale.kernels.matmul.sm100_gemm.shared_memory import shared_bytes
from blockscale.problem import Problem

_STAGES = range(8, 1, -1)
_STATIC_SHARED = 2048  # bytes that the kernel has for itself, at the most


def every_config(problem: Problem) -> Iterator[Config]:
    """384 rows of w and one accumulator leave room for the scales of one panel of any format, and
    are multiplied by pairs alone, which hold half of them each."""
    if not problem.gated:
        for multicast in (False, True):
            yield from _with_stages(problem, Config(384, 2, 1, 0, multicast))
    for mma_n in (256,) if problem.gated else (128, 256):
        for ctas, multicast in ((1, False), (2, False), (2, True)):
            for panels in (1, 2):
                config = Config(mma_n, ctas, panels, 0, multicast)
                yield from _with_stages(problem, config)


def _with_stages(problem: Problem, config: Config) -> Iterator[Config]:
    """As many as fit: fewer hide less latency."""
    for stages in _STAGES:
        config = replace(config, stages=stages)
        if shared_bytes(config, problem) + _STATIC_SHARED <= problem.device.shared_per_cta:
            yield config
            return
