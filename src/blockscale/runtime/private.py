"""Folders of a user's own, in which the library keeps what took long to find out."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_private(folder: Path) -> str | None:
    """Make a folder that others cannot write to; the reason, where it cannot be used."""
    try:
        for each in (
            folder.parent,
            folder,
        ):  # `parents` alone would leave the first open to a group
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        return why_shared(folder)
    except OSError as error:
        return f"it cannot be made ({error})"


def why_shared(folder: Path) -> str | None:
    """Why somebody else might have put something there."""
    if not hasattr(os, "getuid"):
        return None  # Windows: folders of a user's profile are the user's
    facts = folder.stat()
    if facts.st_uid != os.getuid():
        return f"it belongs to user {facts.st_uid}"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write there (chmod 700 {folder})"
    return None
