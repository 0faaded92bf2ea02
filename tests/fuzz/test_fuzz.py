"""Twenty thousand damaged files, the same in every run; `make fuzz` tries others."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("resource")

from fuzz.__main__ import fast_folder
from fuzz.harness import run_case
from fuzz.readers import readers

SEED = 1
PARTS = 4  # of each reader's cases, for the workers
CASES = 640  # of each part


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", list(readers()))
@pytest.mark.fault(
    "20,480 files are damaged in ways that keep most of their structure",
    outcome="a right result, or ValueError or OSError that names the file; bounded time and memory",
)
def test_damaged_files_are_read_rightly_or_refused(name, part):
    print(f"seed {SEED}")
    outcomes = Counter()
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        for number in range(part * CASES, (part + 1) * CASES):
            outcomes[run_case(readers()[name], SEED, number, Path(folder) / "case")] += 1
    print(outcomes)
    assert outcomes["read"] > 0  # sound enough that the whole reader runs


def test_there_are_enough_cases():
    assert len(readers()) * PARTS * CASES >= 20_000
