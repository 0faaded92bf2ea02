"""Opening a safetensors file, or saying what the matter with it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from blockscale.runtime import open_regular

# How files begin that are taken for safetensors by mistake.
_KINDS = {
    b"GGUF": "is a GGUF file, which is not read here: fetch the model as safetensors",
    b"PK\x03\x04": "is a pickle of torch, which is never opened: convert it to safetensors",
    b"\x80\x02": "is a pickle of torch, which is never opened: convert it to safetensors",
    b"version https://git-lfs": "is a pointer of Git LFS: run `git lfs pull` in its folder",
    b"<": "is a web page or XML: fetch the file itself",
}


def open_safetensors(path: Path) -> Any:
    """`safe_open`, with the system's own errors where a file cannot be read."""
    with open_regular(path) as file:  # safe_open says "no such file" of one without permission
        start = file.read(32)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{str(path)!r}: safetensors opens files by names in UTF-8 only: rename the file or "
            "its folder"
        ) from None
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        reason = next((what for magic, what in _KINDS.items() if start.startswith(magic)), None)
        reason = reason or f"is truncated or not a safetensors file ({error}): fetch it again"
        raise ValueError(f"{path} {reason}") from None
