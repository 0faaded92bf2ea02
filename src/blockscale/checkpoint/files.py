"""Reading safetensors files that may be damaged or hostile, one tensor at a time.

A checkpoint on disk is one `.safetensors` file, or a folder with `config.json` and either a single
file or shards with an index. Everything that can be known without reading weights (headers, index,
config) is read and checked when it is opened; a tensor is mapped from its file when it is asked
for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
DESCRIPTION = "quantization_config"  # in config.json, or in the metadata of a file on its own
_LARGEST_JSON = 2**28  # an index of a million tensors has half of this

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
    """An opened checkpoint: its config, and its tensors by name, in the order of the files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.folder, shards, index = _locate(self.path)
        self._open = {name: _open(self.folder / name) for name in shards}
        self.entries = {
            entry.name: entry for name in shards for entry in _entries(name, self._open[name])
        }
        if index is not None:
            _check_index(self.path, index, self.entries)
        self.config = self._read_config()

    @property
    def shards(self) -> list[Path]:
        return [self.folder / name for name in self._open]

    def tensor(self, name: str, *, alone: bool = False) -> Tensor:
        """Mapped: bytes come when they are used, and stay while a tensor of their file is there.

        One that is mapped alone takes its bytes with it when it goes.
        """
        file = self.entries[name].file
        opened = _open(self.folder / file) if alone else self._open[file]
        loaded: Tensor = opened.get_tensor(name)
        return loaded

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON file beside the weights, or None where there is none."""
        path = self.folder / name
        return read_json(path) if path.exists() else None

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
        return {DESCRIPTION: _parse_object(described, f"{self.path}, metadata")}


def read_json(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > _LARGEST_JSON:
        raise ValueError(f"{path} has {size:,} bytes, more than a description can need")
    return _parse_object(path.read_bytes(), str(path))


def _parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a JSON object, got {type(value).__name__}")
    return value


def _locate(path: Path) -> tuple[Path, list[str], Mapping[str, str] | None]:
    """The folder, the names of its shards, and the index where there is one."""
    if path.is_file():
        return path.parent, [path.name], None
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if (path / INDEX).exists():
        index = _weight_map(path / INDEX)
        return path, sorted(set(index.values())), index
    if (path / SINGLE).exists():
        return path, [SINGLE], None
    found = sorted(file.name for file in path.glob("*.safetensors"))
    if len(found) != 1:
        raise FileNotFoundError(
            f"{path} has {len(found)} .safetensors files and no {INDEX}: "
            + ("convert the weights to safetensors" if not found else "name one of the files")
        )
    return path, found, None


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> shard. A shard is a plain name in the same folder and never a path out of it."""
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ValueError(f"{path} has no weight_map")
    for name, file in index.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise ValueError(f"{path} places {name!r} in {file!r}, which is no file of its folder")
        if not file.endswith(".safetensors"):
            raise ValueError(f"{path} places {name!r} in {file!r}: only safetensors are read")
        if not (path.parent / file).is_file():
            raise FileNotFoundError(f"{path} places {name!r} in {file}, which is missing")
    return index


def _check_index(path: Path, index: Mapping[str, str], entries: Mapping[str, Entry]) -> None:
    for name, file in index.items():
        if name not in entries or entries[name].file != file:
            raise ValueError(f"{path / INDEX} places {name!r} in {file}, which does not hold it")
    for name, entry in entries.items():
        if name not in index:
            raise ValueError(f"{path / entry.file} holds {name!r}, which {INDEX} does not list")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is truncated or not a safetensors file ({error}): fetch it again"
        ) from None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer 2 before layer 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def _entries(file: str, opened: Any) -> list[Entry]:
    found = []
    for name in sorted(opened.keys(), key=_natural):
        part = opened.get_slice(name)
        dtype = DTYPES.get(part.get_dtype())
        if dtype is None:
            raise ValueError(
                f"{file}: {name!r} has dtype {part.get_dtype()}, which is not read: "
                f"expected one of {', '.join(DTYPES)}"
            )
        found.append(Entry(name, file, dtype, tuple(part.get_shape())))
    return found
