"""An opened checkpoint, whatever dialect it is written in: names, shapes, formats, tensors."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from blockscale.checkpoint.dialects import Dialect, dialect_of
from blockscale.checkpoint.files import Files
from blockscale.checkpoint.stored import Stored, plain
from blockscale.tensor import QTensor


class Checkpoint:
    """`tensors` is known from headers alone; `read` brings one tensor into memory."""

    def __init__(self, path: str | Path) -> None:
        self.files = Files(path)
        self.dialect: Dialect | None = dialect_of(self.files)
        self.tensors = _tensors(self.files, self.dialect)

    def read(self, name: str, *, alone: bool = False) -> QTensor | Tensor:
        """alone: for one tensor after the other, so that no more than these are in memory."""
        stored = self.tensors[name]
        parts = {
            role: self.files.tensor(entry.name, alone=alone) for role, entry in stored.parts.items()
        }
        try:
            return stored.assemble(parts)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.files.path}: {name}: {error}") from error


def _tensors(files: Files, dialect: Dialect | None) -> dict[str, Stored]:
    """What the dialect claims, and plain tensors, in the order of the files."""
    claimed = dialect.find(files) if dialect else []
    first_part = {next(iter(stored.parts.values())).name: stored for stored in claimed}
    taken = {entry.name for stored in claimed for entry in stored.parts.values()}
    tensors: dict[str, Stored] = {}
    for entry in files.entries.values():
        if entry.name in first_part:
            stored = first_part[entry.name]
        elif entry.name in taken:
            continue
        else:
            stored = plain(entry)
        if stored.name in tensors:
            raise ValueError(f"{files.path} holds {stored.name} twice, quantised and plain")
        tensors[stored.name] = stored
    return tensors
