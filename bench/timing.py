"""How a time is taken.

A GEMV is a read of the weights, so a time means something only if the weights come from memory, as
they do in a model, whose other layers pass through the caches between two uses of one of them. Each
rival therefore has a ring of distinct copies of its weight, larger than the last-level cache, and
every call takes the next copy.

Rivals take turns, round by round and in a new order each round: whatever the machine does
meanwhile, it does to all of them. A round gives one sample of each rival, and what is reported is
the median over the rounds with the quartiles. Ratios are taken within rounds, where both sides met
the same machine.

A `Clock` makes the stopwatch of one rival; the rounds do not know which clock they use. The one for
CPUs is here, that for GPUs in `cuda_timing`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles
from typing import TYPE_CHECKING, Protocol

from bench.machine import available_memory, last_level_cache

if TYPE_CHECKING:  # records and tables are read without it
    import torch

Call = Callable[[], object]

RING_BYTES = 256 * 2**20  # at least; see ring_bytes
MAX_COPIES = 1024  # a weight so small that these fit the caches is not worth more
MIN_ROUNDS = 3  # the fewest that have quartiles
MAX_ROUNDS = 200
SAMPLE_SECONDS = 0.004  # a sample of short calls is as many of them as fill this
WARM_UP_SECONDS = 2.0  # for a first call on every copy of a weight
LEAD_IN_SECONDS = 0.004  # of untimed calls, which wake the threads and bring the clock up
LONG_SECONDS = 0.05  # a call of which needs no lead-in
SPIN_LIMIT_SECONDS = 0.05  # nobody's threads are waited for longer


class Stopwatch(Protocol):
    """Times one rival."""

    def warm_up(self) -> float:
        """Seconds of one call, after what only the first calls do."""

    def sample(self) -> float:
        """Seconds per call."""


class Clock(Protocol):
    """Of one device. A device's memory and caches say how large rings can and should be."""

    device: torch.device | str

    def free_memory(self) -> int: ...

    def ring_bytes(self, rivals: int) -> int:
        """Bytes of distinct weights for each rival."""

    def stopwatch(self, calls: Sequence[Call]) -> Stopwatch:
        """For one rival; `calls` do the same work, each on its own copy of the weight."""


@dataclass(frozen=True)
class Spread:
    """The middle half of some samples."""

    median: float
    q1: float
    q3: float
    rounds: int

    @property
    def percent(self) -> float:
        """Half the distance of the quartiles, relative to the median."""
        return 50 * (self.q3 - self.q1) / self.median


def spread(samples: Sequence[float]) -> Spread:
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0], 1)
    q1, _, q3 = quantiles(samples, n=4, method="inclusive")
    return Spread(median(samples), q1, q3, len(samples))


def ratio(baseline: Sequence[float], samples: Sequence[float]) -> Spread:
    """How many times faster than the baseline, round by round."""
    if len(baseline) == len(samples):
        return spread([b / s for b, s in zip(baseline, samples, strict=True)])
    # One of them was too slow for rounds and was timed once: there are no pairs.
    quotient = median(baseline) / median(samples)
    return Spread(quotient, quotient, quotient, min(len(baseline), len(samples)))


def take_turns(
    stopwatches: Mapping[str, Stopwatch], seconds: float, seed: int = 0
) -> dict[str, list[float]]:
    """Samples of each rival, in seconds per call, from rounds that fill about `seconds`.

    There are at least `MIN_ROUNDS`. A rival of which a single call takes longer than `seconds` is
    not asked again: its only sample is that of its warm-up.
    """
    first = {name: watch.warm_up() for name, watch in stopwatches.items()}
    turns = [name for name in first if first[name] <= seconds]
    samples = {name: [] if name in turns else [first[name]] for name in first}
    order = random.Random(seed)  # noqa: S311
    end = time.perf_counter() + seconds
    rounds = 0
    while turns and rounds < MAX_ROUNDS and (rounds < MIN_ROUNDS or time.perf_counter() < end):
        order.shuffle(turns)
        for name in turns:
            samples[name].append(stopwatches[name].sample())
        rounds += 1
    return samples


def ring_bytes(rivals: int) -> int:
    """Bytes of distinct weights for each rival.

    At least 256 MB and twice the last-level cache; but all rings together take at most half of the
    memory that is free, however small that makes them.
    """
    wanted = max(RING_BYTES, 2 * last_level_cache())
    return min(wanted, available_memory() // 2 // max(rivals, 1))


def copies(weight_bytes: int, space: int) -> int:
    """How many weights of this size make a ring of so many bytes."""
    return min(max(1, -(-space // weight_bytes)), MAX_COPIES)


class CpuClock:
    device = "cpu"

    def free_memory(self) -> int:
        return available_memory()

    def ring_bytes(self, rivals: int) -> int:
        return ring_bytes(rivals)

    def stopwatch(self, calls: Sequence[Call]) -> CpuStopwatch:
        return CpuStopwatch(calls)


class CpuStopwatch:
    """Wall time of consecutive calls round the ring."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._copies = len(calls)
        self._ring = cycle(calls)
        self._calls = 1  # in a sample
        self._lead_in = 0  # calls before a sample

    def warm_up(self) -> float:
        wait_for_quiet()
        end = time.perf_counter() + WARM_UP_SECONDS
        for _ in range(
            self._copies
        ):  # what a weight's first call finds out is kept with the weight
            next(self._ring)()
            if time.perf_counter() > end:
                break
        seconds = self._time(1)
        if seconds < SAMPLE_SECONDS:  # too short to know from one call
            seconds = self._time(max(2, round(SAMPLE_SECONDS / 2 / seconds)))
        self._calls = max(1, round(SAMPLE_SECONDS / seconds))
        if seconds < LONG_SECONDS:
            self._lead_in = max(1, round(LEAD_IN_SECONDS / seconds))
        return seconds

    def sample(self) -> float:
        wait_for_quiet()
        for _ in range(self._lead_in):
            next(self._ring)()
        return self._time(self._calls)

    def _time(self, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            next(self._ring)()
        return (time.perf_counter() - begin) / calls


def wait_for_quiet() -> None:
    """Until the threads of whoever ran last have gone to sleep.

    Thread pools spin for a while after their work is done (OpenMP's for milliseconds), and would
    take cores from the next rival. They are quiet once the process uses no processor time.
    """
    end = time.perf_counter() + SPIN_LIMIT_SECONDS
    while time.perf_counter() < end:
        used, begin = time.process_time(), time.perf_counter()
        time.sleep(0.001)
        if time.process_time() - used < 0.2 * (time.perf_counter() - begin):
            return
