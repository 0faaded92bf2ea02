"""What is compiled: a source file of `blockscale/cuda`, a kernel in it, and what it is fixed to."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "cuda"  # headers by folder, kernels in one of their own
_INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


class _Content(NamedTuple):
    hash: str
    includes: tuple[str, ...]


@lru_cache(maxsize=256)
def _content(file: Path, inode: int, size: int, changed: int) -> _Content:
    """Read once: a kernel has some fifty headers, and most kernels the same ones."""
    read = file.read_bytes()
    return _Content(
        hashlib.sha256(read).hexdigest(), tuple(each.decode() for each in _INCLUDE.findall(read))
    )


def _content_of(file: Path) -> _Content:
    facts = file.stat()
    return _content(file, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@dataclass(frozen=True)
class Build:
    """One specialised kernel. Hashable, since functions are looked up by it at every call."""

    source: str  # a file in FOLDER/kernels, or an absolute path
    entry: str  # the name of an extern "C" __global__ function
    defines: tuple[tuple[str, str | int], ...] = ()
    needs: tuple[str, ...] = ()  # instructions that its machine code must have, as in ("HMMA",)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once."""
        return hash((self.source, self.entry, self.defines))

    def __reduce__(self) -> tuple[object, ...]:
        """Without the hash, which differs between processes."""
        return Build, (self.source, self.entry, self.defines, self.needs)

    def __str__(self) -> str:
        fixed = " ".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.source}:{self.entry}" + (f" [{fixed}]" if fixed else "")

    @property
    def path(self) -> Path:
        return FOLDER / "kernels" / self.source

    def files(self) -> list[Path]:
        """The source and every header of ours that it may include, directly or not.

        Conditions are not read: a header that a define leaves out is listed as well.
        """
        found, waiting = {self.path: None}, [self.path]
        while waiting:
            file = waiting.pop()
            for name in _content_of(file).includes:
                places = [file.parent / name, FOLDER / name]
                header = next((place for place in places if place.is_file()), None)
                if header is not None and header not in found:
                    found[header] = None
                    waiting.append(header)
        return list(found)

    def key(self, options: list[str], compiler: str) -> str:
        """Of everything that the machine code depends on."""
        contents = sorted((file.name, _content_of(file).hash) for file in self.files())
        facts = [self.path.name, self.entry, self.defines, options, compiler, contents]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
