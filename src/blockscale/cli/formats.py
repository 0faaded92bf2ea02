"""`blockscale formats`: every format, and what its codes mean."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from blockscale.cli.names import complete_format
from blockscale.cli.output import Output
from blockscale.formats import CATALOGUE, Codebook, Float, Format
from blockscale.formats import format as find_format


def formats(
    out: Output,
    name: Annotated[
        str | None,
        typer.Argument(help="One format, with all its values.", autocompletion=complete_format),
    ] = None,
) -> None:
    """List the formats, or all values of one."""
    if name is None:
        out.report([_facts(entry) for entry in CATALOGUE.values()], _catalogue())
    else:
        entry = find_format(name)
        out.report({**_facts(entry), "values": entry.element.values}, _values(entry))


def _facts(entry: Format) -> dict[str, Any]:
    return {
        "name": entry.name,
        "spec": entry.spec,
        "element": entry.element.name,
        "block": entry.block,
        "scale": entry.scale.name,
        "tensor_scale": entry.tensor_scale if entry.has_tensor_scale else None,
        "bits_per_value": entry.bits_per_value,
        "largest_element": entry.element.max,
    }


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
