"""Files that appear whole or not at all, whoever else writes to the same path at the time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished"  # how files end that are being written, or that a killed process left
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_NEW |= getattr(os, "O_BINARY", 0)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` once it is complete and on disk.

    Until then it has a name that no other thread or process has, so of several writers each writes
    its own, and the last to finish wins whole. What is at that name already, a link say, is an
    error and not written to.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}{UNFINISHED}")
    handle = os.open(temporary, _NEW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def is_unfinished(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(UNFINISHED)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
