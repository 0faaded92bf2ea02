"""How much of the CPUs went to others while something was timed.

A virtual machine's cores are shared with other machines ("steal" in vmstat), and with the other
processes of its own system. A product on two threads waits for the slower one, so that a tenth of
one core taken costs far more than a tenth of the speed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_GUEST = 8  # the first field of the line that counts what an earlier one has counted already
_IDLE = (3, 4)
_STEAL = 7


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
