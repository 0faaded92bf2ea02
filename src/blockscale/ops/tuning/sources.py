"""A hash of the kernels' sources: what was measured with others does not count."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from blockscale import kernels
from blockscale.runtime import load_native
from blockscale.runtime.cuda import FOLDER


@cache
def source_hash(target: str) -> str:
    """Of everything that a target's kernels are made from. Coarse: any change counts for all."""
    total = hashlib.sha256()
    for name, file in _files(target):
        total.update(f"{name}:{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def _files(target: str) -> list[tuple[str, Path]]:
    folder = Path(kernels.__file__).parent
    found = [(str(file.relative_to(folder)), file) for file in sorted(folder.rglob("*.py"))]
    if target != "cpu":
        device = sorted(FOLDER.rglob("*.cu*"))
        return found + [(str(file.relative_to(FOLDER)), file) for file in device]
    native = load_native()
    return found if isinstance(native, str) else [*found, ("native", Path(native.path))]
