"""`--rows` and `--shape`: sizes as text, read before anything is loaded."""

from __future__ import annotations

import re

_SHAPE = re.compile(r"(\d+)x(\d+)")


def parse_rows(text: str) -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4)."""
    try:
        rows = tuple(int(each) for each in text.split(","))
    except ValueError:
        rows = ()
    if not rows or min(rows) < 1:
        raise ValueError(f"--rows {text!r}: give numbers of rows such as 1,2,4")
    return rows


def parse_shape(text: str) -> tuple[int, int]:
    """ "14336x4096" -> (14336, 4096)."""
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    n, k = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (n and k):
        raise ValueError(f"--shape {text!r}: give n x k of a weight, as in 14336x4096")
    return n, k
