"""JSON from files that may be damaged or hostile: counted before it is parsed.

Parsed, JSON takes up to 30 times the memory of its text (`{"":0},` is seven bytes, and a dict of
two hundred), and its depth is taken from the stack. So every kind of file has limits that fit it,
which its text is held against first. Errors name the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_BRACKETS = re.compile(rb"[][{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half a character, or the first of two halves


@dataclass(frozen=True)
class Limits:
    """The most that one kind of file can need."""

    nbytes: int
    values: int  # members of objects and elements of lists, however deep
    depth: int = 32


def read_json(path: Path, limits: Limits, where: str = "") -> dict[str, Any]:
    """The object that a file holds. `where` is what errors call the file: its path unless given."""
    where = where or str(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(size, limits, where)
        text = file.read(size + 1)  # one more shows that it has grown meanwhile
    return parse_json(text, limits, where)


def parse_json(text: bytes, limits: Limits, where: str) -> dict[str, Any]:
    _check_size(len(text), limits, where)
    _check_structure(text, limits, where)
    try:
        value = json.loads(text.decode("utf-8-sig"))
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"{where} is not JSON: its text is no UTF-8 ({error.reason})") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a JSON object, got {type(value).__name__}")
    return value


def open_regular(path: Path) -> BinaryIO:
    """For reading; a pipe or a device, which might never end, is an error."""
    # Without O_NONBLOCK, to open a pipe is to wait for its writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def _check_size(size: int, limits: Limits, where: str) -> None:
    if size > limits.nbytes:
        raise ValueError(
            f"{where} has {size:,} bytes, more than a description can need: at most "
            f"{limits.nbytes:,} are read"
        )


def _check_structure(text: bytes, limits: Limits, where: str) -> None:
    """How many values there are and how deep, without making one."""
    # Escapes first: then every quotation mark begins or ends a string, and commas and brackets
    # in every second piece between them are JSON's own.
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = bare.count(b'"') // 2
    values = 0
    if strings <= 2 * limits.values:  # a name and a string each
        bare = b"".join(bare.split(b'"')[::2])
        values = sum(map(bare.count, (b",", b"[", b"{")))
    if values > limits.values or strings > 2 * limits.values:
        raise ValueError(
            f"{where} has {max(values, strings):,} values, more than a description can need: at "
            f"most {limits.values:,} are read"
        )
    depth = 0
    for bracket in _BRACKETS.finditer(bare):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > limits.depth:
            raise ValueError(f"{where} is nested more than {limits.depth} deep")
        if depth < 0:
            break  # not JSON, as parsing will say
