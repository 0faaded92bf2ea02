"""How a time is taken on a GPU: calls replayed from a CUDA graph, between two events.

A graph takes the host out: what is left is what the GPU does, with the gaps between kernels of one
stream. Calls that a graph cannot hold are launched between the events instead, host and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import ceil

import torch

from blockscale.runtime import torch_private
from blockscale.runtime.timing import Call

_SAMPLE_SECONDS = 0.0015  # a sample is at least so long, which is long beside a pair of events
_MOST_CALLS = 2000  # in a graph
_LEAD_CYCLES = 600_000  # the GPU waits so long, about 0.3 ms, while the host queues the work
_WARMING = 3  # rounds: kernels load, memory is allocated, weights count as settled
_TRIALS = 3


class EventStopwatch:
    """Calls round the ring, launched one by one on the current stream."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        _warm_up(calls)
        self._calls *= _repeats(min(self._seconds() for _ in range(_TRIALS)), len(calls))

    def sample(self) -> float:
        return self._seconds() / len(self._calls)

    def _seconds(self) -> float:
        return _between_events(lambda: _run(self._calls))


class GraphStopwatch:
    """The same calls from a graph. The current stream must not be the default one."""

    def __init__(self, calls: Sequence[Call]) -> None:
        _warm_up(calls)
        self._graph, self._count = capture(calls), len(calls)
        times = _repeats(min(self._seconds() for _ in range(_TRIALS)), len(calls))
        if times > 1:
            self._graph, self._count = capture(list(calls) * times), len(calls) * times
            self._seconds()  # a first replay uploads the graph

    def sample(self) -> float:
        return self._seconds() / self._count

    def _seconds(self) -> float:
        return _between_events(self._graph.replay)


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _warm_up(calls: Sequence[Call]) -> None:
    for _ in range(_WARMING):
        _run(calls)
    torch.cuda.current_stream().synchronize()


def _between_events(work: Call) -> float:
    """Seconds that the GPU takes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch_private.sleep(_LEAD_CYCLES)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _repeats(seconds: float, calls: int) -> int:
    """How often a ring that takes so long is gone round, so that it fills a sample."""
    return max(1, min(ceil(_SAMPLE_SECONDS / max(seconds, 1e-9)), _MOST_CALLS // max(calls, 1)))


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """On the current stream. Not by `torch.cuda.graph`, which collects garbage at every capture.

    Errors of other threads are left to them: libraries may clean up in the background.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        _run(calls)
    except BaseException:
        with suppress(RuntimeError):  # the first error says more than the end of a broken capture
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
