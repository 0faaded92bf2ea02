"""An opened checkpoint, whatever dialect it is written in: names, shapes, formats, tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from blockscale.checkpoint.dialects import Dialect, check_unclaimed, dialect_of
from blockscale.checkpoint.files import Files
from blockscale.checkpoint.stored import Parts, Ranges, Stored, plain
from blockscale.tensor import QTensor, cat, part_range


class Checkpoint:
    """`tensors` is known from headers alone; `read` brings one tensor into memory.

    names   of the files of a folder, where others know which; see `Files`
    """

    def __init__(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        self.files = Files(path, names)
        self.dialect: Dialect | None = dialect_of(self.files)
        self.tensors = _tensors(self.files, self.dialect)

    def read(self, name: str, *, alone: bool = False) -> QTensor | Tensor:
        """alone: for one tensor after the other, so that no more than these are in memory."""
        entries = self.tensors[name].parts.items()
        parts = {role: self.files.tensor(entry.name, alone=alone) for role, entry in entries}
        return self._assemble(name, parts)

    def read_shard(
        self, name: str, axis: int, rank: int, size: int, *, pieces: int = 1
    ) -> QTensor | Tensor:
        """What rank `rank` of `size` holds of a tensor, cut along `axis` as `bs.shard` cuts it.

        pieces   matrices that are fused along the axis, of each of which the rank gets its part: 2
                 for gate_up_proj

        Only these bytes are read, and tensor scales and codebooks; of bitsandbytes, whose rows run
        on, all bytes.
        """
        stored, dims = self.tensors[name], len(self.tensors[name].shape)
        if not -dims <= axis < dims:
            raise IndexError(f"read_shard: axis {axis} of {name}, which has {dims} dimensions")
        axis %= dims
        try:
            ranges = _ranges(stored, axis, rank, size, pieces)
            windows = None if stored.windows is None else stored.windows(axis, ranges)
        except ValueError as error:
            raise ValueError(f"{self.files.path}: {name}: {error}") from None
        if windows is None:
            whole = self.read(name)
            indices = [tuple([slice(None)] * axis + [slice(*each)]) for each in ranges]
            cut = [whole[index] for index in indices]
            return cut[0] if len(cut) == 1 else _cat(cut, axis)
        parts = {
            role: self.files.part(entry.name, *windows[role])
            if role in windows
            else self.files.tensor(entry.name)
            for role, entry in stored.parts.items()
        }
        return self._assemble(name, parts)

    def _assemble(self, name: str, parts: Parts) -> QTensor | Tensor:
        try:
            return self.tensors[name].assemble(parts)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.files.path}: {name}: {error}") from error


def _ranges(stored: Stored, axis: int, rank: int, size: int, pieces: int) -> Ranges:
    """The rank's part of each piece."""
    whole = stored.shape[axis]
    if not 0 <= rank < size:
        raise ValueError(f"read_shard: rank must be from 0 to {size - 1}, got {rank}")
    if whole % pieces:
        raise ValueError(f"{whole} along axis {axis} are not {pieces} pieces of one size")
    piece = whole // pieces
    shape = (*stored.shape[:axis], piece, *stored.shape[axis + 1 :])
    start, length = part_range(shape, axis, rank, size, stored.format)
    return tuple((piece * i + start, piece * i + start + length) for i in range(pieces))


def _cat(parts: Sequence[QTensor | Tensor], axis: int) -> QTensor | Tensor:
    quantized = [part for part in parts if isinstance(part, QTensor)]
    if quantized:
        return cat(quantized, axis)
    return torch.cat([part for part in parts if isinstance(part, Tensor)], axis)


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
            if dialect is not None:
                check_unclaimed(files, dialect, entry)
            stored = plain(entry)
        if stored.name in tensors:
            raise ValueError(f"{files.path} holds {stored.name} twice, quantised and plain")
        tensors[stored.name] = stored
    return tensors
