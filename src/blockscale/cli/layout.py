"""`blockscale layout`: where each scale of a tensor goes in the blocked layout."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from blockscale.cli.names import complete_format
from blockscale.cli.output import Output
from blockscale.formats import Format
from blockscale.formats import format as find_format

_ROWS = (0, 1, 31, 32, 64, 96, 127, 128)  # whose offsets are shown, and the last
_COLUMNS = 8


def layout(
    out: Output,
    format: Annotated[
        str,
        typer.Argument(
            help="A format with one-byte scales, such as nvfp4.", autocompletion=complete_format
        ),
    ],
    rows: Annotated[int, typer.Argument(help="Rows of the tensor.", min=1)],
    k: Annotated[int, typer.Argument(help="Columns of the tensor.", min=1)],
    batches: Annotated[int, typer.Option("-l", "--batches", help="Matrices.", min=1)] = 1,
    picture: Annotated[
        Path | None, typer.Option("-o", "--out", help="Picture to write: .svg or .png.")
    ] = None,
    draw: Annotated[bool, typer.Option(help="Write the picture.")] = True,
) -> None:
    """Print and draw the tensor-core layout of a tensor's scales."""
    entry = find_format(format)
    if entry.scale.bits != 8:
        raise ValueError(
            f"layout: blocked scales are one byte each; {entry} has {entry.scale.name} scales"
        )
    if k % entry.block:
        raise ValueError(f"layout: {entry} needs k divisible by {entry.block}, got {k}")
    name = re.sub(r"[^-.A-Za-z0-9_]+", "_", entry.name)
    path = picture or Path(f"layout_{name}_{rows}x{k}.svg")
    if draw and path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"layout: the picture must be .svg or .png, got {path.name!r}")
    if draw:
        from blockscale.cli.draw_layout import draw_scale_layout

        draw_scale_layout(entry, rows, k // entry.block, path)
    facts = _facts(entry, rows, k, batches)
    facts["picture"] = path if draw else None
    out.report(facts, *_lines(facts))


def _facts(entry: Format, rows: int, k: int, batches: int) -> dict[str, Any]:
    from blockscale.layouts import ATOM_COLUMNS, ATOM_ROWS, scale_atom, scale_layout

    columns = k // entry.block
    whole = scale_layout((rows, k, batches), entry)
    return {
        "format": entry.name,
        "scale": entry.scale.name,
        "block": entry.block,
        "shape": [rows, k, batches],
        "scales": [rows, columns],
        "padded_scales": [rows + -rows % ATOM_ROWS, columns + -columns % ATOM_COLUMNS],
        "bytes": whole.cosize,
        "atom": str(scale_atom(entry.block)),
        "layout": str(whole),
        "offsets": {  # of matrix 0: by row, one for each of the first scale columns
            r: [whole(r, c * entry.block, 0) for c in range(min(columns, _COLUMNS))]
            for r in _below(rows, (*_ROWS, rows - 1))
        },
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    (rows, k, batches), (_, columns) = facts["shape"], facts["scales"]
    high, wide = facts["padded_scales"]
    lines = [
        f"{facts['format']}: one {facts['scale']} scale for {facts['block']} elements along k",
        f"tensor  {rows} x {k} x {batches}: {rows} x {columns} scales each",
        f"padded  {high} x {wide} scales, {facts['bytes']} bytes in all",
        f"atom    {facts['atom']}",
        f"scales  {facts['layout']}",
        "offsets of row r, scale column c (matrix 0):",
    ]
    for r, offsets in facts["offsets"].items():
        lines.append(f"  r={r:<6d}" + "".join(f"{offset:>8d}" for offset in offsets))
    return lines + ([f"picture {facts['picture']}"] if facts["picture"] else [])


def _below(limit: int, wanted: Iterable[int]) -> list[int]:
    return sorted({index for index in wanted if 0 <= index < limit})
