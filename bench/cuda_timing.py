"""How a time is taken on a GPU: the ring captured in a CUDA graph, replayed between two events.

A graph takes the host out: what is left is what the GPU does, with the gaps it has between kernels
of one stream. Whoever can start a kernel before the one ahead of it ends may do so, as in a model.
The ring repeats inside the graph until a replay is long beside the event pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch

from bench.timing import Call
from blockscale.runtime.cuda.timing import capture

RING_CACHES = 3  # a ring is so many times as large as the L2 cache, at least
SAMPLE_SECONDS = 0.0015  # a replay is at least so long
MAX_CALLS = 2000  # in a graph
_LEAD_CYCLES = 600_000  # the GPU waits so long, about 0.3 ms, while the host queues the replay
_TRIALS = 3


class CudaClock:
    """Everything after it was made runs on a stream of its own, since only such can be captured."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.set_stream(torch.cuda.Stream())

    def free_memory(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return free

    def ring_bytes(self, rivals: int) -> int:
        return ring_bytes(l2_bytes(self.device), self.free_memory(), rivals)

    def stopwatch(self, calls: Sequence[Call]) -> CudaStopwatch:
        return CudaStopwatch(calls)


class CudaStopwatch:
    """A capture that fails raises here, and not while others are timed."""

    def __init__(self, calls: Sequence[Call]) -> None:
        for call in calls:  # compiles, loads and allocates, which a capture does not allow
            call()
        torch.cuda.synchronize()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._graph, self._count = capture(calls), len(calls)
        once = min(self._replay() for _ in range(_TRIALS))
        times = repeats(once, len(calls))
        if times > 1:
            self._graph, self._count = capture(list(calls) * times), len(calls) * times

    def warm_up(self) -> float:
        return min(self.sample() for _ in range(_TRIALS))

    def sample(self) -> float:
        return self._replay() / self._count

    def _replay(self) -> float:
        """Seconds of the whole graph."""
        begin, end = self._events
        torch.cuda._sleep(_LEAD_CYCLES)
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def repeats(seconds: float, calls: int) -> int:
    """How often a ring that takes so long is captured, so that a replay fills a sample."""
    return max(1, min(ceil(SAMPLE_SECONDS / seconds), MAX_CALLS // calls))


def ring_bytes(cache: int, free: int, rivals: int) -> int:
    """All rings together take at most half of the memory that is free."""
    return min(RING_CACHES * cache, free // 2 // max(rivals, 1))


def l2_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size
