"""One JSON file of results that belong to a machine, and reading it however damaged it may be.

What stands in a result is the business of whoever keeps it: `parse` makes one out of JSON, or says
by a ValueError what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from blockscale.runtime.bounded_json import Limits, read_json

_VERSION = 1
_LIMITS = Limits(nbytes=2**24, values=2**19)  # thousands of results


class Machine(NamedTuple):
    device: str
    target: str


class Entry(Protocol):
    """A dataclass of JSON's own types."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> tuple[str, ...]:
        """What a later result takes the place of an earlier one by."""


Kept = TypeVar("Kept", bound=Entry)
Parse = Callable[[Any], Kept]
Warn = Callable[[str], object]


def to_text(machine: Machine, results: Sequence[Kept]) -> str:
    content = {
        "version": _VERSION,
        "device": machine.device,
        "target": machine.target,
        "results": [asdict(each) for each in sorted(results, key=lambda each: each.key)],
    }
    return json.dumps(content, indent=1) + "\n"


def read(path: Path, parse: Parse[Kept], remedy: str, warn: Warn) -> tuple[Machine, list[Kept]]:
    """Whatever of a file is sound; nothing where there is none. `warn` hears of the rest, and of
    the remedy: the command that makes such results."""
    try:
        machine, entries = _content(path)
    except FileNotFoundError:
        return Machine("", ""), []
    except (OSError, ValueError) as error:
        warn(f"{path}: not used, since {error}; {remedy} writes it anew")
        return Machine("", ""), []
    found = [_sound(entry, parse) for entry in entries]
    for number, each in enumerate(found):
        if isinstance(each, str):
            warn(f"{path}: result {number} is not used, since {each}: {remedy} makes it anew")
    return machine, [each for each in found if not isinstance(each, str)]


def _sound(entry: Any, parse: Parse[Kept]) -> Kept | str:
    """A result, or what is wrong with it."""
    try:
        return parse(entry)
    except ValueError as error:
        return str(error)


def _content(path: Path) -> tuple[Machine, list[Any]]:
    content = read_json(path, _LIMITS, "it")
    version = field(int, content, "version")
    if version != _VERSION:
        raise ValueError(f"its version is {version}, not {_VERSION}")
    machine = Machine(field(str, content, "device"), field(str, content, "target"))
    entries: list[Any] = field(list, content, "results")
    return machine, entries


def field(kind: type | tuple[type, ...], content: Any, name: str) -> Any:
    """A member of an object, of the kind that it must have. A bool is no number."""
    if not isinstance(content, dict):
        raise ValueError(f"there is {content!r:.40} instead of an object")
    value = content.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"its {name!r} is {value!r:.40}")
    return value
