"""`blockscale layout`: where scales, codes and sums lie, printed and drawn."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.names import check_name, complete, complete_format
from blockscale.cli.output import Output
from blockscale.formats import format as find_format

MEMORIES = ("scales", "shared", "tmem")


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
    memory: Annotated[
        str,
        typer.Option(
            help="scales: blocked, in files; shared: swizzled codes of a tile; tmem: sums and "
            "scales of a product by --m rows of x in the same format.",
            autocompletion=complete(MEMORIES),
        ),
    ] = "scales",
    m: Annotated[int, typer.Option(help="Rows of x, of --memory tmem.", min=1)] = 8192,
    gpu: Annotated[str, typer.Option(help="Whose TMEM, by name: b200, b300.")] = "b200",
    picture: Annotated[
        Path | None, typer.Option("-o", "--out", help="Picture to write: .svg or .png.")
    ] = None,
    draw: Annotated[bool, typer.Option(help="Write the picture.")] = True,
) -> None:
    """Print and draw the tensor-core layout of a tensor: scales, shared memory or TMEM."""
    check_name("--memory", memory, MEMORIES)
    entry = find_format(format)
    if entry.scale.bits != 8:
        raise ValueError(
            f"layout: blocked scales are one byte each; {entry} has {entry.scale.name} scales"
        )
    if k % entry.block:
        raise ValueError(f"layout: {entry} needs k divisible by {entry.block}, got {k}")
    name = re.sub(r"[^-.A-Za-z0-9_]+", "_", entry.name)
    kind = "" if memory == "scales" else f"{memory}_"
    path = picture or Path(f"layout_{kind}{name}_{rows}x{k}.svg")
    if draw and path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"layout: the picture must be .svg or .png, got {path.name!r}")
    if draw and not path.parent.is_dir():  # said before seconds of drawing
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))

    from blockscale.cli import memories

    if memory == "scales":
        shown = memories.blocked(entry, rows, k, batches)
    elif memory == "shared":
        shown = memories.shared(entry, rows)
    else:
        shown = memories.tmem(entry, (m, rows, k), gpu)
    if draw:
        shown.draw(path)
    facts = {**shown.facts, "picture": path if draw else None}
    out.report(facts, *shown.lines, *([f"picture {path}"] if draw else []))
