"""Results on the disk: one small JSON file for each machine, for people to read.

A file appears by an atomic rename, and who changes it holds a lock meanwhile, so that two processes
lose nothing of each other's. What is damaged is left out with a warning that names the file. A
folder that others may write to is not read.
"""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Generic

from blockscale.runtime.private import make_private, why_shared
from blockscale.runtime.replacing import is_unfinished, replacing
from blockscale.runtime.result_file import Kept, Machine, Parse, read, to_text

if sys.platform != "win32":
    import fcntl

Key = tuple[Machine, tuple[str, ...]]


class ResultFolder(Generic[Kept]):
    """maker   what makes the results, as errors call it: "tuning"
    remedy  the command that makes them anew"""

    def __init__(
        self, folder: Callable[[], Path], parse: Parse[Kept], *, maker: str, remedy: str
    ) -> None:
        self.folder = folder
        self._parse, self._maker, self._remedy = parse, maker, remedy
        self._read: dict[Path, dict[Key, Kept]] = {}

    def results(self) -> dict[Key, Kept]:
        """Everything that is kept, by machine and key; read once for the process."""
        folder = self.folder()
        if folder not in self._read:
            self._read[folder] = self._read_folder(folder)
        return self._read[folder]

    def forget(self) -> None:
        """Read again at the next question."""
        self._read.clear()

    def check_storable(self) -> None:
        """Raise where nothing can be kept, before time is spent on it."""
        reason = make_private(self.folder())
        if reason is not None:
            raise RuntimeError(
                f"{self.folder()}: {self._maker} cannot keep its results there, since {reason}. "
                "BLOCKSCALE_CACHE names another folder"
            )

    def keep(self, machine: Machine, result: Kept) -> Path:
        """Add a result, in the place of an earlier one with the same key."""
        self.check_storable()
        path = self.folder() / _file_name(machine)
        with _locked(path.parent):
            _, listed = read(path, self._parse, self._remedy, warn_once)
            others = [each for each in listed if each.key != result.key]
            with replacing(path, mode=0o600) as file:
                file.write(to_text(machine, [*others, result]).encode())
        self.forget()
        return path

    def clear(self) -> int:
        """Remove the results of all machines; how many there were."""
        folder = self.folder()
        if not folder.is_dir():
            return 0
        with _locked(folder):
            self.forget()
            count = len(self.results())
            for path in folder.glob("*.json"):
                path.unlink(missing_ok=True)
        self.forget()
        return count

    def _read_folder(self, folder: Path) -> dict[Key, Kept]:
        if not folder.is_dir():
            return {}
        try:
            reason = why_shared(folder)
            files = sorted(folder.glob("*.json"))
        except OSError as error:
            reason, files = f"it cannot be read ({error})", []
        if reason is not None:
            warn_once(f"{folder}: results of {self._maker} are not used, since {reason}")
            return {}
        found: dict[Key, Kept] = {}
        for path in files:
            machine, listed = read(path, self._parse, self._remedy, warn_once)
            found |= {(machine, each.key): each for each in listed}
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
def warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
