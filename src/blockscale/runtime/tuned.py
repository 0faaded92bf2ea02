"""What tuning has found, on the disk. A result holds for the sources that it was measured with;
those of other sources stay, unused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from blockscale.runtime.environment import tuned_folder
from blockscale.runtime.result_file import Machine, field
from blockscale.runtime.result_folder import ResultFolder

__all__ = [
    "LEAST_GAIN",
    "Machine",
    "Measured",
    "Result",
    "check_storable",
    "clear",
    "find",
    "forget",
    "keep",
    "results",
]

LEAST_GAIN = 1.02  # less is noise: two runs of the same kernel differ by as much
_LONGEST = 1e12  # microseconds: eleven days


@dataclass(frozen=True)
class Measured:
    """A way to compute something, and its median time."""

    kernel: str
    config: dict[str, Any]
    microseconds: float


@dataclass(frozen=True)
class Result:
    problem: dict[str, Any]  # the facts that count
    sources: str  # a hash of the kernels'
    best: Measured
    rule: Measured  # what runs untuned, timed in the same rounds
    date: str
    versions: dict[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        return _text(self.problem), self.sources

    @property
    def gain(self) -> float:
        """How many times faster than the rule's choice."""
        return self.rule.microseconds / self.best.microseconds

    @property
    def wins(self) -> bool:
        return self.gain >= LEAST_GAIN


def parse(entry: Any) -> Result:
    return Result(
        problem=field(dict, entry, "problem"),
        sources=field(str, entry, "sources"),
        best=_measured(field(dict, entry, "best")),
        rule=_measured(field(dict, entry, "rule")),
        date=field(str, entry, "date"),
        versions=field(dict, entry, "versions"),
    )


def _measured(entry: dict[str, Any]) -> Measured:
    time = field((int, float), entry, "microseconds")
    if not 0 < time < _LONGEST:  # neither is NaN
        raise ValueError(f"its 'microseconds' is {time!r:.40}")
    return Measured(field(str, entry, "kernel"), field(dict, entry, "config"), float(time))


_kept = ResultFolder(tuned_folder, parse, maker="tuning", remedy="`blockscale tune`")
results, forget, keep, clear = _kept.results, _kept.forget, _kept.keep, _kept.clear
check_storable = _kept.check_storable


def find(machine: Machine, sources: str, problem: dict[str, Any]) -> Result | None:
    return results().get((machine, (_text(problem), sources)))


def _text(problem: dict[str, Any]) -> str:
    """The same for the same facts."""
    return json.dumps(problem, sort_keys=True)
