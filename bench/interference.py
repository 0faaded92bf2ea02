"""How much of the CPUs went to others while something was timed.

A virtual machine's cores are shared with other machines ("steal" in vmstat), and with the other
processes of its own system. A product on two threads waits for the slower one, so that a tenth of
one core taken costs far more than a tenth of the speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

_STAT = Path("/proc/stat")
_GUEST = 8  # the first field of the line that counts what an earlier one has counted already
_IDLE = (3, 4)
_STEAL = 7
_GLANCE = 1.0  # seconds

Result = TypeVar("Result")


class CpuTime(NamedTuple):
    """Seconds since the system's start, of all CPUs together."""

    all: float
    idle: float
    stolen: float  # by other machines
    own: float  # of this process and of its children that have ended

    def interference_since(self, before: CpuTime) -> Interference:
        passed = CpuTime(*(now - then for now, then in zip(self, before, strict=True)))
        if passed.all <= 0:
            return Interference(0.0, 0.0)
        others = passed.all - passed.idle - passed.stolen - passed.own
        return Interference(passed.stolen / passed.all, max(0.0, others / passed.all))


class Interference(NamedTuple):
    """Shares of the CPUs' time."""

    stolen: float
    others: float  # of other processes of this system

    @property
    def both(self) -> float:
        return self.stolen + self.others


def cpu_time() -> CpuTime | None:
    """None on systems without /proc/stat."""
    if not _STAT.exists():
        return None
    own = sum(os.times()[:4])
    return parse_stat(_STAT.read_text(), own, os.sysconf("SC_CLK_TCK"))


def parse_stat(text: str, own: float, ticks: int) -> CpuTime:
    fields = [int(each) / ticks for each in text.splitlines()[0].split()[1:]]
    return CpuTime(sum(fields[:_GUEST]), sum(fields[i] for i in _IDLE), fields[_STEAL], own)


def _watched(work: Callable[[], Result]) -> tuple[Result, Interference]:
    before = cpu_time()
    found = work()
    after = cpu_time()
    if before is None or after is None:
        return found, Interference(0.0, 0.0)
    return found, after.interference_since(before)


class DisturbedError(RuntimeError):
    """The machine did not become quiet."""


class Quiet:
    """Measures until others have left the CPUs alone meanwhile.

    most      the share of the CPUs that others may have had
    patience  seconds after which a measurement is given up
    """

    def __init__(self, most: float, patience: float) -> None:
        self._most, self._patience = most, patience
        self._kept: list[Interference] = []
        self._thrown_away = 0

    def measure(self, work: Callable[[], float]) -> float:
        deadline = time.monotonic() + self._patience
        while True:
            found, interference = _watched(work)
            if interference.both <= self._most:
                self._kept.append(interference)
                return found
            self._thrown_away += 1
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        """Until a second of doing nothing shows that others do nothing either."""
        while True:
            _, interference = _watched(partial(time.sleep, _GLANCE))
            if interference.both <= self._most:
                return
            if time.monotonic() >= deadline:
                raise DisturbedError(
                    f"for {self._patience:.0f} s others have had more than {self._most:.0%} of the "
                    f"CPUs ({interference.stolen:.1%} stolen, {interference.others:.1%} of other "
                    "processes at last): wait for them to end, or allow more with --interference"
                )

    def record(self) -> dict[str, float]:
        """For a stored run."""
        return {
            "most_stolen": max((each.stolen for each in self._kept), default=0.0),
            "most_of_other_processes": max((each.others for each in self._kept), default=0.0),
            "measurements": len(self._kept),
            "thrown_away": self._thrown_away,
        }
