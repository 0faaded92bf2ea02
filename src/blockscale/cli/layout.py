"""`blockscale layout`: where each scale of a tensor goes in the blocked layout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blockscale.formats import format as find_format
from blockscale.layouts import ATOM_COLUMNS, ATOM_ROWS, scale_atom, scale_layout


def layout(
    format: Annotated[str, typer.Argument(help="A format with one-byte scales, such as nvfp4.")],
    rows: Annotated[int, typer.Argument(help="Rows of the tensor.", min=1)],
    k: Annotated[int, typer.Argument(help="Columns of the tensor.", min=1)],
    batches: Annotated[int, typer.Option("-l", "--batches", help="Matrices.", min=1)] = 1,
    out: Annotated[
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
    path = out or Path(f"layout_{re.sub(r'[^-.A-Za-z0-9_]+', '_', entry.name)}_{rows}x{k}.svg")
    if draw and path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"layout: the picture must be .svg or .png, got {path.name!r}")
    columns = k // entry.block
    padded_rows, padded_columns = rows + -rows % ATOM_ROWS, columns + -columns % ATOM_COLUMNS
    whole = scale_layout((rows, k, batches), entry)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{entry}: one {entry.scale.name} scale for {entry.block} elements along k")
    console.print(f"tensor  {rows} x {k} x {batches}: {rows} x {columns} scales each")
    console.print(f"padded  {padded_rows} x {padded_columns} scales, {whole.cosize} bytes in all")
    console.print(f"atom    {scale_atom(entry.block)}", markup=False)
    console.print(f"scales  {whole}", markup=False)
    console.print("offsets of row r, scale column c (matrix 0):")
    for r in _samples(rows, (0, 1, 31, 32, 64, 96, 127, 128, rows - 1)):
        cells = (whole(r, c * entry.block, 0) for c in _samples(columns, range(8)))
        console.print(f"  r={r:<6d}" + "".join(f"{cell:>8d}" for cell in cells))
    if draw:
        from blockscale.cli.draw_layout import draw_scale_layout

        draw_scale_layout(entry, rows, columns, path)
        console.print(f"picture {path}", markup=False)


def _samples(limit: int, wanted: range | tuple[int, ...]) -> list[int]:
    return sorted({index for index in wanted if 0 <= index < limit})
