"""A folder under construction, which survives being killed at any moment.

The work is done in `TARGET.partial`, beside the target, and the folder is renamed when everything
is there: TARGET exists if and only if it is complete. A journal in it says what is being made of
what, and the sha256 of each finished file. A later run with the same journal goes on where the
first one stopped; any other is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockscale.checkpoint.save import check_absent, rename_folder
from blockscale.checkpoint.shards import file_digest, write_json
from blockscale.runtime import Limits, is_unfinished, read_json, sync_folder

JOURNAL = "blockscale-journal.json"
_LIMITS = Limits(nbytes=2**24, values=2**17)  # a line for each file of the source and the target


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

    def discard(self) -> None:
        """For work that no later run could go on from: the folder goes with the end of this one."""
        for path in self.folder.iterdir():
            path.unlink()

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
        try:
            check_absent(target)  # again: another process may have finished meanwhile
            journal = _resume(folder, task)
            journal.write()
            yield journal
        except BaseException:
            if not _kept(folder):
                shutil.rmtree(folder)  # nothing in it is worth another run
            raise
        rename_folder(folder, target)
        _remove_journal(target)  # after the rename: without its journal, nobody could resume


def finish_renamed(target: Path, task: Mapping[str, Any]) -> bool:
    """Whether an earlier run of the task was killed at its very end, with the journal left over."""
    if not (target / JOURNAL).is_file():
        return False
    if read_json(target / JOURNAL, _LIMITS).get("task") != task:
        return False
    _remove_journal(target)
    return True


def _remove_journal(target: Path) -> None:
    (target / JOURNAL).unlink()
    sync_folder(target)


def _kept(folder: Path) -> list[str]:
    """What an earlier run left that is worth keeping: its journal alone is not."""
    return [p.name for p in folder.iterdir() if p.name != JOURNAL and not is_unfinished(p)]


def _resume(folder: Path, task: Mapping[str, Any]) -> Journal:
    left = _kept(folder)
    for path in filter(is_unfinished, folder.iterdir()):
        path.unlink()
    if not left:
        return Journal(folder, task, {})
    if not (folder / JOURNAL).exists():
        raise FileExistsError(f"{folder} holds {left[0]} and no {JOURNAL}: remove the folder")
    begun = read_json(folder / JOURNAL, _LIMITS)
    earlier, finished = (_object(folder, begun, key) for key in ("task", "finished"))
    for key, value in task.items():
        before = earlier.get(key)
        if before != value:
            raise ValueError(
                f"{folder} was begun otherwise ({key}: {_difference(before, value)}): run the "
                "first command again to finish it, or remove the folder to start afresh"
            )
    return Journal(folder, task, {str(file): str(digest) for file, digest in finished.items()})


def _object(folder: Path, begun: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = begun.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{folder / JOURNAL} has no {key}: remove the folder to start afresh")
    return value


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

    taken = f"{folder} is being written by another process"
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # finished and renamed since it was made or found
        raise RuntimeError(taken) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_it = os.path.samestat(os.fstat(handle), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            is_it = False
        if not is_it:
            raise RuntimeError(taken)
        yield
    finally:
        os.close(handle)
