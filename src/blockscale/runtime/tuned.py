"""What tuning has found, on the disk: one small JSON file for each device, for people to read.

A file appears by an atomic rename, and who changes it holds a lock meanwhile, so that two processes
lose nothing of each other's. What is damaged is left out with a warning that names the file. A
result holds for the sources that it was measured with; those of other sources stay, unused.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from blockscale.runtime.environment import tuned_folder
from blockscale.runtime.private import make_private, why_shared
from blockscale.runtime.replacing import is_unfinished, replacing
from blockscale.runtime.tuned_file import LEAST_GAIN, Machine, Measured, Result, read, to_text

if sys.platform != "win32":
    import fcntl

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

Results = dict[tuple[Machine, str, str], Result]  # by sources and problem


def results() -> Results:
    """Everything that is kept, read once for the process."""
    return _read_folder(tuned_folder())


def forget() -> None:
    """Read again at the next question."""
    _read_folder.cache_clear()


def find(machine: Machine, sources: str, problem: dict[str, Any]) -> Result | None:
    return results().get((machine, sources, json.dumps(problem, sort_keys=True)))


def check_storable() -> None:
    """Raise where nothing can be kept, before time is spent on it."""
    reason = make_private(tuned_folder())
    if reason is not None:
        raise RuntimeError(
            f"{tuned_folder()}: tuning cannot keep its results there, since {reason}. "
            "BLOCKSCALE_CACHE names another folder"
        )


def keep(machine: Machine, result: Result) -> Path:
    """Add a result, in the place of an earlier one of the same problem and sources."""
    check_storable()
    path = tuned_folder() / _file_name(machine)
    key = result.sources, result.problem_text
    with _locked(path.parent):
        _, listed = read(path, _warn_once)
        others = [each for each in listed if (each.sources, each.problem_text) != key]
        with replacing(path, mode=0o600) as file:
            file.write(to_text(machine, [*others, result]).encode())
    forget()
    return path


def clear() -> int:
    """Remove the results of all devices; how many there were."""
    folder = tuned_folder()
    if not folder.is_dir():
        return 0
    with _locked(folder):
        forget()
        count = len(results())
        for path in folder.glob("*.json"):
            path.unlink(missing_ok=True)
    forget()
    return count


@lru_cache(maxsize=4)
def _read_folder(folder: Path) -> Results:
    if not folder.is_dir():
        return {}
    try:
        reason = why_shared(folder)
        files = sorted(folder.glob("*.json"))
    except OSError as error:
        reason, files = f"it cannot be read ({error})", []
    if reason is not None:
        _warn_once(f"{folder}: results of tuning are not used, since {reason}")
        return {}
    found: Results = {}
    for path in files:
        machine, listed = read(path, _warn_once)
        found |= {(machine, each.sources, each.problem_text): each for each in listed}
    return found


def _file_name(machine: Machine) -> str:
    """Readable, and different for different machines."""
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(machine).lower()).strip("-")
    return f"{words[:80]}-{hashlib.sha256(' '.join(machine).encode()).hexdigest()[:8]}.json"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time. Windows has no such lock: there the last writer's file stays."""
    if sys.platform == "win32":
        yield
    else:
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed
            for path in filter(is_unfinished, folder.iterdir()):  # of a writer that was killed
                path.unlink(missing_ok=True)
            yield


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
