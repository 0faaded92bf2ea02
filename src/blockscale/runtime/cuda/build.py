"""What is compiled: a source file of `blockscale/cuda`, a kernel in it, and what it is fixed to."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "cuda"  # headers by folder, kernels in one of their own
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


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
        found, waiting = [self.path], [self.path]
        while waiting:
            file = waiting.pop()
            for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
                places = [file.parent / name, FOLDER / name]
                header = next((place for place in places if place.is_file()), None)
                if header is not None and header not in found:
                    found.append(header)
                    waiting.append(header)
        return found

    def key(self, options: list[str], compiler: str) -> str:
        """Of everything that the machine code depends on."""
        contents = sorted(
            (file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in self.files()
        )
        facts = [self.path.name, self.entry, self.defines, options, compiler, contents]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
