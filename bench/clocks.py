"""The clock of each device that `bench.run` knows."""

from __future__ import annotations

from bench.cuda_timing import CudaClock
from bench.timing import Clock, CpuClock

CLOCKS: dict[str, type[Clock]] = {"cpu": CpuClock, "cuda": CudaClock}
