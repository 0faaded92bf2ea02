"""Compiled kernels on the disk: private, bounded, safe between processes, and never needed.

One file per kernel, named by the hash of all it was made from. A file holds the checksum of the
rest, a line that says what it is, and the machine code; it appears by an atomic rename, so a reader
finds all of it or nothing, and what a crash or a bad disk damaged is found out and compiled again.
Machine code is run, so a folder that others may write to is not read. Whatever goes wrong with the
disk costs a warning and a compilation, not the call.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path

from blockscale.runtime.bounded_json import Limits, parse_json
from blockscale.runtime.environment import cache_folder, cache_megabytes
from blockscale.runtime.private import make_private
from blockscale.runtime.replacing import is_unfinished, replacing

_SUFFIX = ".cubin"
_ABOUT = Limits(nbytes=2**16, values=16, depth=2)  # the line that says what a file is
_ABANDONED_SECONDS = 3600  # a file that is being written is far younger


@dataclass(frozen=True)
class Entry:
    """What a file holds, for people."""

    build: str
    arch: str
    nvrtc: str

    @property
    def source(self) -> str:
        return self.build.partition(":")[0]


@dataclass(frozen=True)
class Cache:
    folder: Path
    limit: int  # bytes

    def read(self, key: str) -> bytes | None:
        """The machine code, if it is there and whole; it becomes the most recently used."""
        path = self._path(key)
        try:
            checksum, _, rest = self._content(path).partition(b"\n")
            if hashlib.sha256(rest).hexdigest().encode() != checksum:
                path.unlink(missing_ok=True)
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_once(f"{self.folder}: cannot read compiled kernels ({error})")
            return None
        with suppress(OSError):  # a read-only disk serves all the same
            os.utime(path)
        return rest.partition(b"\n")[2]

    def _content(self, path: Path) -> bytes:
        """Empty where it is larger than all kernels together may be, which none of them is."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read(size) if size <= self.limit else b""

    def holds(self, key: str) -> bool:
        return self._path(key).is_file()

    def write(self, key: str, entry: Entry, code: bytes) -> None:
        rest = json.dumps(asdict(entry)).encode() + b"\n" + code
        checksum = hashlib.sha256(rest).hexdigest().encode()
        try:
            with replacing(self._path(key), mode=0o600) as file:
                file.write(checksum + b"\n" + rest)
            self._shrink()
        except OSError as error:
            _warn_once(
                f"{self.folder}: cannot keep compiled kernels ({error}); they are compiled again "
                "in each process. BLOCKSCALE_CACHE names another folder"
            )

    def entries(self) -> Iterator[tuple[Entry, int]]:
        """What is there, and its bytes."""
        for path, facts in self._files():
            with suppress(OSError, ValueError, TypeError), path.open("rb") as file:
                file.readline(_ABOUT.nbytes)
                about = parse_json(file.readline(_ABOUT.nbytes), _ABOUT, str(path))
                yield Entry(**about), facts.st_size

    def clear(self) -> int:
        """Remove everything; how many kernels there were."""
        files = [path for path, _ in self._files()]
        for path in [*files, *self._unfinished()]:
            path.unlink(missing_ok=True)
        return len(files)

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _unfinished(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if is_unfinished(path)]

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Whole files; another process may remove one at any time."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return found

    def _shrink(self) -> None:
        """Least recently used first, until the rest fits; and what crashed writers left."""
        files = sorted(self._files(), key=lambda each: each[1].st_mtime)
        total = sum(facts.st_size for _, facts in files)
        for path, facts in files:
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= facts.st_size
        for path in self._unfinished():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()


def open_cache() -> Cache | None:
    """What the environment asks for; None where it is off or its folder cannot be used."""
    return _open(cache_folder(), cache_megabytes() * 2**20)


@lru_cache(maxsize=16)
def _open(folder: Path, limit: int) -> Cache | None:
    if limit <= 0:
        return None
    reason = make_private(folder)
    if reason is None:
        return Cache(folder, limit)
    _warn_once(
        f"{folder}: not used for compiled kernels, since {reason}; they are compiled again in each "
        "process. BLOCKSCALE_CACHE names another folder"
    )
    return None


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
