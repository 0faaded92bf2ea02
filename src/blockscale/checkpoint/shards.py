"""Writing safetensors as a stream: sizes are planned first, so no shard is ever held in memory.

A safetensors file is the length of its header (8 bytes, little-endian), the header (JSON: dtype,
shape and offsets of each tensor), then the bytes. With all sizes known the header can be written
before the first tensor exists. A file appears under its name when it is complete and on disk, by
atomic rename.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from ctypes import c_ubyte
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.checkpoint.files import DTYPES, SINGLE
from blockscale.runtime import replacing

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8
_CHUNK = 2**22
Metadata = Mapping[str, str]


@dataclass(frozen=True)
class Outline:
    """Dtype and shape of a tensor that is to be written."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Outline:
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Shard:
    file: str
    outlines: Mapping[str, Outline]  # in the order of writing

    @property
    def nbytes(self) -> int:
        return sum(outline.nbytes for outline in self.outlines.values())

    def header(self, metadata: Metadata | None = None) -> bytes:
        # Loaders of the ecosystem refuse files without this entry.
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
        start = 0
        for name, outline in self.outlines.items():
            if outline.dtype not in _NAMES:
                raise ValueError(f"{name} has dtype {outline.dtype}, which safetensors cannot hold")
            end = start + outline.nbytes
            header[name] = {
                "dtype": _NAMES[outline.dtype],
                "shape": list(outline.shape),
                "data_offsets": [start, end],
            }
            start = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def plan_shards(units: Iterable[Mapping[str, Outline]], shard_size: int) -> list[Shard]:
    """Units in order, each whole, into files of at most `shard_size` bytes where they fit."""
    files: list[dict[str, Outline]] = [{}]
    filled = 0
    for unit in units:
        size = sum(outline.nbytes for outline in unit.values())
        if files[-1] and filled + size > shard_size:
            files.append({})
            filled = 0
        files[-1].update(unit)
        filled += size
    if len(files) == 1:
        return [Shard(SINGLE, files[0])]
    return [
        Shard(f"model-{number:05d}-of-{len(files):05d}.safetensors", outlines)
        for number, outlines in enumerate(files, 1)
    ]


def index_of(shards: list[Shard]) -> dict[str, Any]:
    return {
        "metadata": {"total_size": sum(shard.nbytes for shard in shards)},
        "weight_map": {name: shard.file for shard in shards for name in shard.outlines},
    }


def write_shard(
    folder: Path,
    shard: Shard,
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Metadata | None = None,
) -> str:
    """Stream the tensors, which come in the shard's order, into its file; returns its sha256."""
    digest = hashlib.sha256()
    with replacing(folder / shard.file) as file:
        for chunk in _chunks(shard, tensors, metadata):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _chunks(
    shard: Shard, tensors: Iterable[tuple[str, Tensor]], metadata: Metadata | None
) -> Iterator[bytes | memoryview]:
    yield shard.header(metadata)
    wanted = iter(shard.outlines.items())
    for name, tensor in tensors:
        expected = next(wanted, None)
        if expected != (name, Outline.of(tensor)):
            raise ValueError(f"{shard.file}: planned {expected}, got {name} {Outline.of(tensor)}")
        held = tensor.detach().cpu().contiguous()
        if held.nbytes:
            yield memoryview((c_ubyte * held.nbytes).from_address(held.data_ptr())).cast("B")
    left = next(wanted, None)
    if left is not None:
        raise ValueError(f"{shard.file}: {left[0]} was planned and never came")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
