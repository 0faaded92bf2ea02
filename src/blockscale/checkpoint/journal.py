"""A folder under construction, which survives being killed at any moment.

The work is done in `TARGET.partial`, beside the target, and the folder is renamed when everything
is there: TARGET exists if and only if it is complete. A journal in it says what is being made of
what, and the sha256 of each finished file. A later run with the same journal goes on where the
first one stopped; any other is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockscale.checkpoint.files import read_json
from blockscale.checkpoint.save import check_absent
from blockscale.checkpoint.shards import file_digest, sync_folder, write_json

JOURNAL = "blockscale-journal.json"


class Journal:
    """The work in progress: which files are finished, and whether they are still sound."""

    def __init__(self, folder: Path, task: Mapping[str, Any], finished: dict[str, str]) -> None:
        self.folder = folder
        self._task = task
        self._finished = finished

    def is_finished(self, file: str) -> bool:
        """Listed, there, and with the bytes that were written."""
        path = self.folder / file
        digest = self._finished.get(file)
        return digest is not None and path.is_file() and file_digest(path) == digest

    def finish(self, file: str, digest: str) -> None:
        self._finished[file] = digest
        self.write()

    def write(self) -> None:
        write_json(self.folder / JOURNAL, {"task": self._task, "finished": self._finished})


@contextmanager
def under_construction(target: Path, task: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal of `TARGET.partial`; on a normal end, the folder becomes TARGET.

    `task` is JSON: all that the result depends on.
    """
    check_absent(target)
    folder = target.with_name(f"{target.name}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        journal = _resume(folder, task)
        journal.write()
        yield journal
        folder.replace(target)
        (target / JOURNAL).unlink()  # after the rename: without its journal, nobody could resume
        sync_folder(target.parent)


def _resume(folder: Path, task: Mapping[str, Any]) -> Journal:
    if not (folder / JOURNAL).exists():
        left = [path.name for path in folder.iterdir() if not _is_stray(path)]
        if left:
            raise FileExistsError(f"{folder} holds {left[0]} and no {JOURNAL}: remove the folder")
        return Journal(folder, task, {})
    begun = read_json(folder / JOURNAL)
    for key, value in task.items():
        before = begun.get("task", {}).get(key)
        if before != value:
            raise ValueError(
                f"{folder} was begun otherwise ({key}: {_difference(before, value)}): run the "
                "first command again to finish it, or remove the folder to start afresh"
            )
    for path in folder.iterdir():
        if _is_stray(path):
            path.unlink()
    finished = begun.get("finished", {})
    return Journal(folder, task, {str(file): str(digest) for file, digest in finished.items()})


def _is_stray(path: Path) -> bool:
    """What a killed run was writing; see `replacing`."""
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def _difference(before: Any, now: Any) -> str:
    """The first entry that differs, before and now."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *now]:
            if before.get(key) != now.get(key):
                return f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
    return f"was {before!r} and is {now!r}"


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """A lock on the folder, which the system lifts when the process ends, however it ends."""
    import fcntl  # not on Windows, where the rest of the library still imports

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RuntimeError(f"{folder} is being written by another process") from None
    try:
        yield
    finally:
        os.close(handle)
