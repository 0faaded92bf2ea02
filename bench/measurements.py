"""The record of `bench.verbs`: a line for each piece of work, stored as JSON as a run is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.results import FOLDER as RUNS
from bench.results import store_whole
from bench.timing import Spread

FOLDER = RUNS / "verbs"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Times are in microseconds per call.

    work       a heading: what kind of work this is
    problem    its size
    name       who did it
    reason     why it was not timed
    beside     what it is compared with, and `other`, its time; ratio: how many times faster
    floor      a plain read of as many bytes as must be read, in the same rounds
    """

    work: str
    problem: str
    name: str
    outcome: str
    reason: str = ""
    error: float | None = None
    time: Spread | None = None
    beside: str = ""
    other: Spread | None = None
    ratio: Spread | None = None
    floor: Spread | None = None
    note: str = ""


@dataclass(kw_only=True)
class Report:
    date: str
    commit: str
    dirty: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    measurements: list[Measurement] = field(default_factory=list)
    schema: int = SCHEMA

    def store(self, path: Path) -> None:
        store_whole(asdict(self), path)


def load(path: Path) -> Report:
    data = json.loads(path.read_text())
    if data.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} has schema {data.get('schema')}, not {SCHEMA}: run it again")
    lines = [Measurement(**_spreads(line)) for line in data["measurements"]]
    return Report(**{**data, "measurements": lines})


def newest_of_each_work(folder: Path = FOLDER) -> list[Report]:
    """Of each GPU and work the newest measurements, each with the facts of its own run: a run of
    some works leaves what is stored of the others."""
    found: dict[tuple[str, str], Report] = {}
    for report in sorted(map(load, folder.glob("*.json")), key=lambda each: each.date):
        for work, lines in works(report.measurements).items():
            found[str(report.machine.get("gpu")), work] = replace(report, measurements=lines)
    return list(found.values())


def works(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """Under their headings, in the order they came."""
    found: dict[str, list[Measurement]] = {}
    for each in measurements:
        found.setdefault(each.work, []).append(each)
    return found


def _spreads(data: dict[str, Any]) -> dict[str, Any]:
    return {
        name: Spread(**value) if isinstance(value, dict) else value for name, value in data.items()
    }
