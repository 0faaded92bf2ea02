"""One file of results: what stands in it, and reading it however damaged it may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from blockscale.runtime.bounded_json import Limits, read_json

LEAST_GAIN = 1.02  # less is noise: two runs of the same kernel differ by as much

_VERSION = 1
_LONGEST = 1e12  # microseconds: eleven days
_LIMITS = Limits(nbytes=2**24, values=2**19)  # thousands of results


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
    def problem_text(self) -> str:
        """The same for the same facts."""
        return json.dumps(self.problem, sort_keys=True)

    @property
    def gain(self) -> float:
        """How many times faster than the rule's choice."""
        return self.rule.microseconds / self.best.microseconds

    @property
    def wins(self) -> bool:
        return self.gain >= LEAST_GAIN


class Machine(NamedTuple):
    device: str
    target: str


def to_text(machine: Machine, results: list[Result]) -> str:
    ordered = sorted(results, key=lambda each: (each.problem_text, each.sources))
    content = {
        "version": _VERSION,
        "device": machine.device,
        "target": machine.target,
        "results": [asdict(each) for each in ordered],
    }
    return json.dumps(content, indent=1) + "\n"


def read(path: Path, warn: Callable[[str], object]) -> tuple[Machine, list[Result]]:
    """Whatever of a file is sound; nothing where there is none. `warn` hears of the rest."""
    try:
        machine, entries = _content(path)
    except FileNotFoundError:
        return Machine("", ""), []
    except (OSError, ValueError) as error:
        warn(f"{path}: not used, since {error}; `blockscale tune` writes it anew")
        return Machine("", ""), []
    found = [_sound(entry) for entry in entries]
    for number, each in enumerate(found):
        if isinstance(each, str):
            warn(f"{path}: result {number} is not used, since {each}: tune it again")
    return machine, [each for each in found if isinstance(each, Result)]


def _content(path: Path) -> tuple[Machine, list[Any]]:
    content = read_json(path, _LIMITS, "it")
    version = _of(int, content, "version")
    if version != _VERSION:
        raise ValueError(f"its version is {version}, not {_VERSION}")
    machine = Machine(_of(str, content, "device"), _of(str, content, "target"))
    entries: list[Any] = _of(list, content, "results")
    return machine, entries


def _sound(entry: Any) -> Result | str:
    """A result, or what is wrong with it."""
    try:
        return Result(
            problem=_of(dict, entry, "problem"),
            sources=_of(str, entry, "sources"),
            best=_measured(_of(dict, entry, "best")),
            rule=_measured(_of(dict, entry, "rule")),
            date=_of(str, entry, "date"),
            versions=_of(dict, entry, "versions"),
        )
    except ValueError as error:
        return str(error)


def _measured(entry: dict[str, Any]) -> Measured:
    time = _of((int, float), entry, "microseconds")
    if not 0 < time < _LONGEST:  # neither is NaN
        raise ValueError(f"its 'microseconds' is {time!r:.40}")
    return Measured(_of(str, entry, "kernel"), _of(dict, entry, "config"), float(time))


def _of(kind: type | tuple[type, ...], content: Any, name: str) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"there is {content!r:.40} instead of an object")
    value = content.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"its {name!r} is {value!r:.40}")
    return value
