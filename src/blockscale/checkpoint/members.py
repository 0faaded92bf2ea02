"""Which files belong to a checkpoint: regular ones inside its folder, and nothing beyond.

A folder from elsewhere may hold links, and a link may lead to any file of the user's. What a link
leads to is read, and copied into what is made of the checkpoint, only if it is inside the folder
itself. The one exception is the cache of Hugging Face, where a model is a folder of links,

    REPOSITORY/snapshots/REVISION/config.json -> ../../blobs/HASH

so that the links of a folder in `snapshots` may end in the `blobs` beside it too. A file that the
user names is that file, link or not.
"""

from __future__ import annotations

from pathlib import Path


class Members:
    """The files of one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        real = folder.resolve()
        self._places = [real]
        if real.parent.name == "snapshots":
            self._places.append(real.parent.parent / "blobs")

    def find(self, name: str) -> Path | None:
        """The file, or None where there is none; a link that leaves the folder is an error."""
        path = self.folder / name
        if not path.exists():
            return None
        real = path.resolve()
        if not any(real.is_relative_to(place) for place in self._places):
            raise ValueError(
                f"{path} is a link to {real}, outside of the folder, where nothing is read: put "
                "the file itself into the folder, or remove the link"
            )
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        return path

    def names(self) -> list[str]:
        """Of its files, and of links to files; whether these may be followed, `find` says."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_file())
