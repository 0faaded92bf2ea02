"""The sweeps of the Hopper GEMM in the documentation: what its chosen configs reach."""

from __future__ import annotations

from statistics import median

from bench.fit_gemm import Timed, choice, read
from bench.fit_stream import SWEEPS
from bench.tables import markdown

_JUDGED = ("h200_gemm_draw5.jsonl", "h200_gemm_draw7.jsonl")  # nothing was fitted to them
_LARGE = 20e6  # weights of a layer


def gpu_gemm() -> str:
    groups: dict[str, list[float]] = {}
    for timed in read(SWEEPS / name for name in _JUDGED):
        groups.setdefault(_kind(timed), []).append(timed.cublas / timed.times[choice(timed)])
    rows = [
        [work, str(len(each)), f"{min(each):.2f}", f"{median(each):.2f}", f"{max(each):.2f}"]
        for work, each in sorted(groups.items())
    ]
    return markdown(["x bfloat16's speed", "problems", "slowest", "median", "fastest"], rows)


def _kind(timed: Timed) -> str:
    problem = timed.problem
    if problem.ragged:
        return "experts, beside `_grouped_mm`"
    if problem.gated:
        return "gate and up, beside one product and SwiGLU"
    if problem.groups > 1:
        return "batches, beside `bmm`"
    size = "large" if problem.n * problem.k >= _LARGE else "small"
    rows = "below 256 rows" if problem.m < 256 else "256 rows and more"
    return f"{size} layers, {rows}"
