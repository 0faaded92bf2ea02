"""`blockscale formats`: every format, and what its codes mean."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from blockscale.formats import CATALOGUE, Codebook, Float, Format
from blockscale.formats import format as find_format


def formats(
    name: Annotated[str | None, typer.Argument(help="One format, with all its values.")] = None,
) -> None:
    """List the formats, or all values of one."""
    console = Console()
    console.print(_values(find_format(name)) if name else _catalogue())


def _catalogue() -> Table:
    table = Table(title="formats: x = decode(code) * scale * tensor_scale", title_justify="left")
    table.add_column("format", no_wrap=True)
    table.add_column("element/block:scale[:tensor scale]", no_wrap=True)
    table.add_column("bits", justify="right")
    table.add_column("values of the element")
    for entry in CATALOGUE.values():
        table.add_row(
            entry.name,
            entry.spec,
            f"{entry.bits_per_value:g}",
            _summary(entry.element),
        )
    return table


def _summary(element: Float | Codebook) -> str:
    if isinstance(element, Codebook):
        numbers, sign = element.values, ""
    else:
        numbers, sign = element.magnitudes, "±"
    if len(numbers) <= 8:
        return sign + " ".join(f"{value:.3g}" for value in numbers)
    head = " ".join(f"{value:.3g}" for value in numbers[:4])
    return f"{sign}{head} .. {numbers[-1]:.6g}  ({len(numbers)})"


def _values(entry: Format) -> Table:
    table = Table(title=f"{entry!r}", title_justify="left")
    table.add_column("code", justify="right")
    table.add_column("bits")
    table.add_column("value", justify="right")
    for code, value in enumerate(entry.element.values):
        table.add_row(str(code), f"{code:0{entry.element.bits}b}", f"{value:.9g}")
    return table
