"""Tables of figures by name, in which no name is ever broken.

Model and tensor names are long, and people copy them. Where a terminal is too narrow for the names
and the figures side by side, each name stands on a line of its own above its figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_ROOMY = 10_000  # columns: more than any table needs


class NamedRows:
    def __init__(self, title: str, headings: Sequence[str], left: Sequence[str] = ()) -> None:
        """headings   of the names, then of the figures; those in `left` are not numbers"""
        self._title, self._headings, self._left = title, headings, left
        self._rows: list[tuple[str, ...]] = []

    def add(self, name: str, *figures: str) -> None:
        self._rows.append((name, *figures))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style="italic", no_wrap=True, overflow="ignore")
        side_by_side, roomy = self._table(0), options.update(max_width=_ROOMY)
        if Measurement.get(console, roomy, side_by_side).maximum <= options.max_width:
            yield side_by_side
            return
        figures = console.render_lines(self._table(1), roomy, pad=False)
        before = len(figures) - len(self._rows)  # lines of the heading
        for number, line in enumerate(figures):
            if number >= before:
                name = self._rows[number - before][0]
                yield Text(name, style="bold", no_wrap=True, overflow="ignore")
            yield from (*line, Segment.line())
        yield ""

    def _table(self, first: int) -> Table:
        """Of all columns from `first` on."""
        table = Table(box=SIMPLE, pad_edge=False, show_edge=not first)
        for number, heading in enumerate(self._headings):
            if number >= first:
                text = number == 0 or heading in self._left
                table.add_column(heading, justify="left" if text else "right", no_wrap=True)
        for row in self._rows:
            table.add_row(*(Text(cell) for cell in row[first:]))
        return table
