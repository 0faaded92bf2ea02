"""Folders of a user's own, in which the library keeps what took long to find out."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path) -> str | None:
    """Make a folder that others cannot write to; the reason, where it cannot be used."""
    try:
        # `parents` alone would leave the first open to a group
        for each in (folder.parent, folder):
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
    if facts.st_mode & _OTHERS:
        return f"others may write there (chmod 700 {folder})"
    # Also where links on the way lead: who may rename a folder above can put another in its place.
    above = {*folder.absolute().parents, *folder.resolve().parents}
    reasons = (_why_replaceable(each) for each in sorted(above))
    return next((reason for reason in reasons if reason is not None), None)


def _why_replaceable(parent: Path) -> str | None:
    facts = parent.stat()
    if facts.st_uid not in (0, os.getuid()):
        return f"{parent}, above it, belongs to user {facts.st_uid}"
    if facts.st_mode & _OTHERS and not facts.st_mode & stat.S_ISVTX:  # as /tmp has it
        return f"others may write to {parent}, above it (chmod go-w {parent})"
    return None
