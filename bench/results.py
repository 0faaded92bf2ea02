"""The record of a run: what is stored, and what the tables are made from.

Plain data that goes to JSON and back without loss. Times are in microseconds per call. Ratios are
to torch's `F.linear` on the same shape in the same rounds, in bfloat16 unless a run says otherwise:
2 is twice as fast, 0.5 half as fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.timing import Spread

SCHEMA = 1
FOLDER = Path(__file__).parent / "results"

BASELINE = "torch bfloat16"
TIMED, WRONG, FAILED = "timed", "wrong", "failed"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One rival in one case. Only what was right is timed.

    role          "ours", "rival", or "ceiling" for a plain read of memory
    reason        why it was not timed
    error         relative to the exact product, root mean square; None where nothing is multiplied
    weight_bytes  what a call has to read of the weight
    kernel        which kernel ran, where the rival says so
    """

    rival: str
    role: str
    outcome: str
    reason: str = ""
    error: float | None = None
    time: Spread | None = None
    ratio: Spread | None = None
    weight_bytes: int = 0
    kernel: str = ""

    @property
    def bytes_per_second(self) -> float:
        """At which the weight is read; 0 where nothing was timed."""
        return 1e6 * self.weight_bytes / self.time.median if self.time else 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    n: int
    k: int
    m: int
    layers: list[str]
    entries: list[Entry]

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k

    def entry(self, rival: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.rival == rival), None)

    @property
    def ceiling(self) -> Entry | None:
        """The fastest of the plain reads of memory."""
        reads = [entry for entry in self.entries if entry.role == "ceiling" and entry.time]
        return max(reads, key=lambda entry: entry.bytes_per_second, default=None)

    def read_like(self, entry: Entry) -> Entry | None:
        """Of the plain reads of about as many bytes as an entry's weight has, the fastest."""
        reads = [each for each in self.entries if each.role == "ceiling" and each.time]
        if not reads or not entry.weight_bytes:
            return None
        apart = {id(each): abs(each.weight_bytes - entry.weight_bytes) for each in reads}
        nearest = [each for each in reads if apart[id(each)] == min(apart.values())]
        return max(nearest, key=lambda each: each.bytes_per_second)

    def percent_of_ceiling(self, entry: Entry) -> float | None:
        """The speed at which a rival reads its weight, relative to a plain read of memory."""
        read = self.read_like(entry)
        if read is None or entry.time is None:
            return None
        return 100 * entry.bytes_per_second / read.bytes_per_second


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Quantising or dequantising a matrix [n, k], beside the same with the reference kernel.

    time, reference  of both; `ratio` is how many times faster than the reference
    """

    name: str
    n: int
    k: int
    outcome: str
    reason: str = ""
    time: Spread | None = None
    reference: Spread | None = None
    ratio: Spread | None = None
    kernel: str = ""


@dataclass(kw_only=True)
class Run:
    """One run of the driver on one machine; it grows case by case.

    missing    rivals that could not take part in any case, with the reason
    skipped    shapes that were left out, with the reason
    """

    device: str
    date: str
    commit: str
    dirty: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    missing: dict[str, str]
    skipped: dict[str, str] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)
    schema: int = SCHEMA

    @property
    def baseline(self) -> str:
        """Whose time ratios are to."""
        return str(self.settings.get("baseline", BASELINE))

    def store(self, path: Path) -> None:
        """An interrupted run leaves what it had after its last shape."""
        store_whole(asdict(self), path)


def store_whole(record: dict[str, Any], path: Path) -> None:
    """As JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".partial")
    draft.write_text(json.dumps(record, indent=1) + "\n")
    draft.replace(path)


def load(path: Path) -> Run:
    data = json.loads(path.read_text())
    if data.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} has schema {data.get('schema')}, not {SCHEMA}: run it again")
    cases = [
        Case(**{**case, "entries": [Entry(**_spreads(entry)) for entry in case["entries"]]})
        for case in data["cases"]
    ]
    conversions = [Conversion(**_spreads(conversion)) for conversion in data["conversions"]]
    return Run(**{**data, "cases": cases, "conversions": conversions})


def stored(folder: Path = FOLDER) -> list[Run]:
    """Every stored run, newest first."""
    return sorted(map(load, folder.glob("*.json")), key=lambda run: run.date, reverse=True)


def newest_per_machine(runs: Iterable[Run]) -> list[Run]:
    """Of runs that are sorted newest first: the first of each machine, by name and threads, and of
    the later ones what they have of shapes that those before them have not."""
    found: list[Run] = []
    seen: dict[tuple[str, str, int], set[tuple[int, int]]] = {}
    for run in runs:
        shapes = seen.get(_place(run))
        if shapes is None:
            found.append(run)
        elif cases := [case for case in run.cases if case.shape not in shapes]:
            found.append(replace(run, cases=cases, conversions=[], skipped={}))
        seen.setdefault(_place(run), set()).update(case.shape for case in run.cases)
    return sorted(found, key=_place)


def _place(run: Run) -> tuple[str, str, int]:
    """A GPU is one place, whatever CPU drives it."""
    if run.device == "cuda":
        return run.device, str(run.machine.get("gpu")), 0
    return run.device, str(run.machine.get("cpu")), run.machine.get("threads", 0)


def _spreads(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record whose nested fields are all spreads."""
    return {
        name: Spread(**value) if isinstance(value, dict) else value for name, value in data.items()
    }
