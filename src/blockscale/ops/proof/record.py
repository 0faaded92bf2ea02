"""Which kernels the tests in tests/gpu have shown to work, on which GPU: record.json.

A kernel that is not listed for an architecture proves itself there. To add one, run tests/gpu and
`blockscale prove` on a GPU of that architecture, and enter the kernel with the date and the commit.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("record.json")


class Tested(NamedTuple):
    gpu: str
    date: str
    commit: str
    kernels: dict[str, list[str]]  # by verb

    def __str__(self) -> str:
        return f"by the tests of this library on {self.gpu}, {self.date}, commit {self.commit}"


@lru_cache(maxsize=1)
def record() -> dict[str, Tested]:
    """By architecture."""
    return {arch: Tested(**facts) for arch, facts in json.loads(FILE.read_text()).items()}


def tested(arch: str, verb: str, kernel: str) -> Tested | None:
    """None where no test has shown that a kernel works there."""
    found = record().get(arch)
    return found if found is not None and kernel in found.kernels.get(verb, ()) else None
