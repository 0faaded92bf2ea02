"""`blockscale inspect`: what a checkpoint holds, and what quantisation cost it."""

from __future__ import annotations

from math import log10, prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from blockscale.cli.output import Output
from blockscale.cli.tables import NamedRows

if TYPE_CHECKING:
    from blockscale.checkpoint import Checkpoint


def inspect(
    out: Output,
    path: Annotated[Path, typer.Argument(help="A folder, or one .safetensors file.")],
    source: Annotated[
        Path | None, typer.Option(help="What it was made of: adds the error of each layer.")
    ] = None,
) -> None:
    """List tensors, formats, bits per value, bytes and errors of a checkpoint."""
    from blockscale.checkpoint import Checkpoint

    checkpoint = Checkpoint(path)
    rows = [_row(checkpoint, name) for name in checkpoint.tensors]
    if source is not None:
        _add_errors(rows, checkpoint, Checkpoint(source))
    dialect = checkpoint.dialect.NAME if checkpoint.dialect else "plain"
    totals = _totals(rows)
    report = {"path": path, "dialect": dialect, "tensors": rows, "formats": totals}
    table = _table(rows, f"{path} ({dialect})", with_errors=source is not None)
    out.report(report, table, _summary(totals))


def _row(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    stored = checkpoint.tensors[name]
    values = prod(stored.shape)
    return {
        "name": name,
        "format": str(stored.format or stored.dtype).removeprefix("torch."),
        "quantised": stored.format is not None,
        "shape": list(stored.shape),
        "values": values,
        "bytes": stored.nbytes,
        "bits_per_value": 8 * stored.nbytes / max(values, 1),
    }


def _add_errors(rows: list[dict[str, Any]], checkpoint: Checkpoint, source: Checkpoint) -> None:
    """Of quantised tensors; those that the source does not have stay without."""
    from blockscale.checkpoint import as_weights, relative_error

    source.tensors = as_weights(source.tensors, source.files.config)
    for row in rows:
        name = row["name"]
        if not row["quantised"] or name not in source.tensors:
            continue
        shape = source.tensors[name].shape
        if shape != checkpoint.tensors[name].shape:
            raise ValueError(
                f"{name} is {row['shape']} but {list(shape)} in {source.files.path}: is it the "
                "source of this checkpoint?"
            )
        error = relative_error(*(each.read(name, alone=True) for each in (checkpoint, source)))
        row["error"] = error
        row["sqnr_db"] = -20 * log10(error) if error else None


def _totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for row in rows:
        for label in (row["format"], "all"):
            total = totals.setdefault(label, {"tensors": 0, "values": 0, "bytes": 0})
            total["tensors"] += 1
            total["values"] += row["values"]
            total["bytes"] += row["bytes"]
    for total in totals.values():
        total["bits_per_value"] = 8 * total["bytes"] / max(total["values"], 1)
    totals["all"] = totals.pop("all", {"tensors": 0, "values": 0, "bytes": 0, "bits_per_value": 0})
    return totals


def _table(rows: list[dict[str, Any]], title: str, *, with_errors: bool) -> NamedRows:
    headings = ["tensor", "format", "shape", "bits", "bytes"] + ["SQNR dB"] * with_errors
    table = NamedRows(title, headings, left=["format"])
    for row in rows:
        cells = [
            row["name"],
            row["format"],
            " x ".join(map(str, row["shape"])),
            f"{row['bits_per_value']:.4g}",
            f"{row['bytes']:,}",
        ]
        if with_errors:
            decibels = row.get("sqnr_db")
            exact = "exact" if row.get("error") == 0 else ""
            cells.append(exact if decibels is None else f"{decibels:.2f}")
        table.add(*cells)
    return table


def _summary(totals: dict[str, dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("format")
    for heading in ("tensors", "values", "bits", "bytes"):
        table.add_column(heading, justify="right")
    for label, total in totals.items():
        table.add_row(
            label,
            str(total["tensors"]),
            f"{total['values']:,}",
            f"{total['bits_per_value']:.4g}",
            f"{total['bytes']:,}",
        )
    return table
