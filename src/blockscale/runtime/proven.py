"""What kernels have shown on this machine's GPUs, on the disk.

A proof holds for one GPU, driver and state of the sources. A failure is kept like a success, so
that a kernel fails once and not in every process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from blockscale.runtime.environment import proven_folder
from blockscale.runtime.result_file import Machine, field
from blockscale.runtime.result_folder import ResultFolder

__all__ = ["Machine", "Proof", "clear", "find", "forget", "keep", "parse", "proofs"]


@dataclass(frozen=True)
class Proof:
    """subject  what kind of problem it was: verb, formats, dtypes, rule
    failure  what went wrong; empty where the kernel passed"""

    kernel: str
    subject: dict[str, Any]
    sources: str  # a hash of the kernels'
    driver: str
    failure: str
    date: str
    versions: dict[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        return self.kernel, _text(self.subject), self.sources, self.driver


def parse(entry: Any) -> Proof:
    return Proof(
        kernel=field(str, entry, "kernel"),
        subject=field(dict, entry, "subject"),
        sources=field(str, entry, "sources"),
        driver=field(str, entry, "driver"),
        failure=field(str, entry, "failure"),
        date=field(str, entry, "date"),
        versions=field(dict, entry, "versions"),
    )


_kept = ResultFolder(proven_folder, parse, maker="proving", remedy="`blockscale prove`")
proofs, forget, keep, clear = _kept.results, _kept.forget, _kept.keep, _kept.clear


def find(
    machine: Machine, kernel: str, subject: dict[str, Any], sources: str, driver: str
) -> Proof | None:
    return proofs().get((machine, (kernel, _text(subject), sources, driver)))


def _text(subject: dict[str, Any]) -> str:
    """The same for the same facts."""
    return json.dumps(subject, sort_keys=True)
