"""Where the installer has put what was compiled."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def installed_file(name: str) -> Path | None:
    """Beside this file in a wheel; where the installer put it for an editable install."""
    beside = Path(__file__).with_name(name)
    if beside.exists():
        return beside
    try:
        installed = files("blockscale") or []
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in installed if file.name == name), None)
