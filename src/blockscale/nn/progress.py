"""A progress bar on the terminal, for loops that take minutes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(items: Sequence[T], label: Callable[[T], str], show: bool | None) -> Iterable[T]:
    """The items one by one, drawn on stderr. None: only where that is a terminal."""
    return _drawn(items, label) if (sys.stderr.isatty() if show is None else show) else items


def _drawn(items: Sequence[T], label: Callable[[T], str]) -> Iterator[T]:
    # Here, since importing the library must not import what draws.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(items))
        for item in items:
            bar.update(task, description=label(item))
            yield item
            bar.advance(task)
