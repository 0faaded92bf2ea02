"""Reading safetensors files that may be damaged or hostile, one tensor at a time.

A checkpoint on disk is one `.safetensors` file, or a folder with `config.json` and either a single
file or shards with an index. A folder may hold a second one, under other file names: then others
say which files are wanted. Everything that can be known without reading weights (headers, index,
config) is read and checked when it is opened; a tensor is mapped from its file when it is asked
for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.checkpoint.description import DESCRIPTION, find_description
from blockscale.checkpoint.members import Members
from blockscale.checkpoint.opening import open_safetensors
from blockscale.runtime import Limits, parse_json, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"

# The largest models have 200,000 tensors, with the parts of quantised ones counted apart.
_INDEX_LIMITS = Limits(nbytes=2**27, values=2**20)
_DESCRIPTION_LIMITS = Limits(nbytes=2**26, values=2**19)
_MOST_DIMENSIONS = 8
_MOST_VALUES = 2**48

# What a file may hold and torch can compute with; safetensors knows a few more names.
DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class Entry:
    """One tensor in one file."""

    name: str
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Files:
    """An opened checkpoint: its config, and its tensors by name, in the order of the files.

    names   of the files that are wanted of a folder; None: those that it has by the usual names
    """

    def __init__(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        self.path = Path(path)
        self._read: dict[str, dict[str, Any] | None] = {}  # JSON files by name; None: not there
        if self.path.is_file():
            self.members, index = Members(self.path.parent), None
            self._open = {self.path.name: open_safetensors(self.path)}
        else:
            self.members = _members(self.path)
            shards, index = self._locate(names)
            self._open = {name: open_safetensors(self.folder / name) for name in shards}
        self.entries = {
            entry.name: entry
            for name, opened in self._open.items()
            for entry in _entries(self.folder / name, opened)
            if index is None or index.get(entry.name, name) == name  # of two the one that it names
        }
        if index is not None:
            _check_index(self.path, index, self.entries)
        self.config = self._read_config()
        self.description = find_description(self.config)  # how it says that it is quantised

    @property
    def folder(self) -> Path:
        return self.members.folder

    @property
    def shards(self) -> list[Path]:
        return [self.folder / name for name in self._open]

    @property
    def sources(self) -> list[Path]:
        """Every file that was read or looked for: what is known of the checkpoint is from these."""
        return [*self.shards, *(self.folder / name for name in self._read)]

    def tensor(self, name: str, *, alone: bool = False) -> Tensor:
        """Mapped: bytes come when they are used, and stay while a tensor of their file is there.

        One that is mapped alone takes its bytes with it when it goes.
        """
        file = self.entries[name].file
        opened = open_safetensors(self.folder / file) if alone else self._open[file]
        loaded: Tensor = opened.get_tensor(name)
        return loaded

    def part(self, name: str, axis: int, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """Ranges of one axis of a tensor, one after the other: no other bytes are read."""
        stored = self._open[self.entries[name].file].get_slice(name)
        indices = [tuple([slice(None)] * axis + [slice(*each)]) for each in ranges]
        read: list[Tensor] = [stored[index] for index in indices]
        return read[0] if len(read) == 1 else torch.cat(read, axis)

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON file beside the weights, or None where there is none."""
        if name not in self._read:
            path = self.members.find(name)
            limits = _INDEX_LIMITS if name == INDEX else _DESCRIPTION_LIMITS
            self._read[name] = None if path is None else read_json(path, limits)
        return self._read[name]

    def _locate(self, wanted: Sequence[str] | None) -> tuple[list[str], Mapping[str, str] | None]:
        """The names of the shards in a folder, and the index where there is one."""
        index, single = self.json(INDEX), self.members.find(SINGLE) is not None
        listed = _listed(index)
        if wanted is not None and {*wanted} not in ({SINGLE}, listed):
            for name in wanted:
                self.members.find(name)
            return list(wanted), None
        # transformers leaves the index where it writes one file over the shards of a model, and the
        # file where it writes shards over it.
        if index is not None and (not single or listed & {*self.members.names()}):
            weight_map = _weight_map(self.members, index)
            if single and SINGLE not in listed:
                raise ValueError(
                    f"{self.path} has two models, {SINGLE} and the shards that {INDEX} lists: "
                    "remove the older one"
                )
            return sorted(set(weight_map.values())), weight_map
        if single:
            return [SINGLE], None
        found = [name for name in self.members.names() if name.endswith(".safetensors")]
        if len(found) != 1:
            raise FileNotFoundError(
                f"{self.path} has {len(found)} .safetensors files and no {INDEX}: "
                + ("convert the weights to safetensors" if not found else "name one of the files")
            )
        self.members.find(found[0])
        return found, None

    def _read_config(self) -> dict[str, Any]:
        """config.json of a folder; of a file on its own, what its metadata say."""
        if self.path.is_dir():
            config = self.json(CONFIG)
            if config is None:
                raise FileNotFoundError(
                    f"{self.path} has no {CONFIG}, which says how the weights are quantised"
                )
            return config
        (opened,) = self._open.values()
        described = (opened.metadata() or {}).get(DESCRIPTION)
        if described is None:
            return {}
        text, where = described.encode(), f"{self.path}, metadata"
        return {DESCRIPTION: parse_json(text, _DESCRIPTION_LIMITS, where)}


def _members(path: Path) -> Members:
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    return Members(path)


def _listed(index: Mapping[str, Any] | None) -> set[str]:
    """The files in which an index places tensors, as far as it is one."""
    weight_map = (index or {}).get("weight_map")
    files = weight_map.values() if isinstance(weight_map, dict) else ()
    return {file for file in files if isinstance(file, str)}


def _weight_map(members: Members, content: Mapping[str, Any]) -> dict[str, str]:
    """Tensor -> shard. A shard is a plain name in the same folder and never a path out of it."""
    path = members.folder / INDEX
    index = content.get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ValueError(f"{path} has no weight_map")
    there: set[str] = set()
    for name, file in index.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise ValueError(f"{path} places {name!r} in {file!r}, which is no file of its folder")
        if not file.endswith(".safetensors"):
            raise ValueError(f"{path} places {name!r} in {file!r}: only safetensors are read")
        if file not in there and members.find(file) is None:
            raise FileNotFoundError(f"{path} places {name!r} in {file!r}, which is missing")
        there.add(file)
    return index


def _check_index(path: Path, index: Mapping[str, str], entries: Mapping[str, Entry]) -> None:
    for name, file in index.items():
        if name not in entries or entries[name].file != file:
            raise ValueError(f"{path / INDEX} places {name!r} in {file}, which does not hold it")
    for name, entry in entries.items():
        if name not in index:
            raise ValueError(f"{path / entry.file} holds {name!r}, which {INDEX} does not list")


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer 2 before layer 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def _entries(path: Path, opened: Any) -> list[Entry]:
    found = []
    for name in sorted(opened.keys(), key=_natural):
        part = opened.get_slice(name)
        dtype = DTYPES.get(part.get_dtype())
        if dtype is None:
            raise ValueError(
                f"{path}: {name!r} has dtype {part.get_dtype()}, which is not read: "
                f"expected one of {', '.join(DTYPES)}"
            )
        shape = tuple(part.get_shape())
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError(
                f"{path}: {name!r} has {len(shape)} dimensions, and at most {_MOST_DIMENSIONS} "
                "are read"
            )
        if prod(max(size, 1) for size in shape) > _MOST_VALUES:  # one that is empty may claim it
            raise ValueError(f"{path}: {name!r} has the shape {list(shape)}, which no tensor has")
        found.append(Entry(name, path.name, dtype, shape))
    return found
